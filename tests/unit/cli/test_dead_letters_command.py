"""`rollog dead-letters`, and roles that meet a flood of unusable records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from support.recorded_run import recorded_run, store_of

from consumers.archive import WeightsChoice, export_archive
from consumers.dead_letters import Reinjection, StoredDeadLetter
from rollog.cli.dead_letters import letter_lines, outcome_lines
from rollog.cli.main import cli
from rollog.kernel.errors import ConfigError, DecodeError
from schemas import DeadLetter

if TYPE_CHECKING:
    from pathlib import Path


def test_letters_are_listed_as_text_and_as_json_from_an_archive(tmp_path: Path) -> None:
    with recorded_run() as run:
        path = tmp_path / "run.zip"
        export_archive(run.broker, run.topics, store_of(run), path, weights=WeightsChoice.NONE)
        words = ["dead-letters", "--archive", str(path)]
        text = CliRunner().invoke(cli, words).output
        assert "1 dead letters" in text
        assert f"{run.topics.samples}, partition 1, offset" in text
        assert "set aside by trainer: SchemaError: not a sample" in text
        (letter,) = json.loads(CliRunner().invoke(cli, [*words, "--json"]).output)
        assert bytes.fromhex(letter["value"]) == b"no sample"
        assert (letter["topic"], letter["headers"]) == (run.topics.samples, {"task_id": "?"})
        assert isinstance(CliRunner().invoke(cli, [*words, "--reinject"]).exception, ConfigError)


def test_what_a_letter_holds_cannot_steer_the_terminal() -> None:
    letter = DeadLetter(
        topic="samples",
        partition=0,
        offset=1,
        reason="\x1b[2J\nsecond line",
        error_class="SchemaError",
        owner="trainer",
        headers={"task_id": b"\x1b]0;x\x07"},
    )
    lines = list(letter_lines([StoredDeadLetter(letter_id=3, timestamp_ms=0, letter=letter)]))
    assert len(lines) == 2
    assert lines[1].isprintable()
    assert lines[1].startswith("#3 1970-01-01T00:00:00+00:00 samples, partition 0, offset 1")


def test_what_became_of_each_letter_is_said() -> None:
    outcomes = [Reinjection(letter_id=1, is_done=True), Reinjection(letter_id=2, is_done=False, reason="why")]
    assert list(outcome_lines(outcomes)) == [
        "1 of 2 dead letters written again",
        "#1 written again",
        "#2 left alone: why",
    ]


def test_dispatcher_and_trainer_end_with_a_clear_message_when_their_topics_are_flooded() -> None:
    with recorded_run(is_finished=False) as run:
        for _ in range(101):
            run.hand.send(run.topics.workers, 0, b"garbage", key=b"k")
            run.hand.send(run.topics.samples, 0, b"garbage")
        with pytest.raises(DecodeError, match=r"101 records in a row on .*\.workers could not be used"):
            run.turn_dispatcher()
        with pytest.raises(DecodeError, match=r"101 records in a row on .*\.samples could not be used"):
            run.turn_trainer()
