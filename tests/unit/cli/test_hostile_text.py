"""Names and texts of records hold what steers a terminal; nothing that is printed or measured does."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest
from rich.console import Console
from support.altered_samples import with_samples
from support.altered_topics import RecordedTopics
from support.builders import a_heartbeat, a_sample
from support.recorded_run import a_manifest_of, recorded_run, store_of

from consumers.archive import WeightsChoice, export_archive
from consumers.audit.auditor import audit_run
from consumers.lineage import Lineage
from consumers.progress import RunProgress
from rollog.cli.audit import tell
from rollog.cli.lineage import answer_lines
from rollog.cli.main import cli
from rollog.kernel.broker.topics import run_topic_names, runs_topic
from rollog.run.display import Lines, Picture
from rollog.run.view import RunFacts
from schemas import DeadLetter, Kind, Sample
from schemas.codec import decode_as, encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.simulated_run import SimulatedRun

evil = "evil\x1b[2J\u202e\r\x9b\u200b"
facts = RunFacts(run="first", num_steps=4, broker="memory", state_directory=".rollog")


@pytest.fixture
def run() -> Iterator[SimulatedRun]:
    """A run whose topics hold what an attacker wrote beside the run's own records."""
    with recorded_run(is_finished=False) as run:
        named = [(evil, evil.encode()), ("task_id", evil.encode())]
        run.hand.send(run.topics.samples, 0, b"no sample", headers=named)
        run.finish()
        run.hand.send(
            run.topics.samples, 0, encode(a_sample(worker_id=evil, error_message=evil, task_id=evil))
        )
        run.hand.send(run.topics.workers, 0, encode(a_heartbeat(evil, engine=evil)), key=evil.encode())
        run.hand.send(
            run.topics.evaluations,
            0,
            encode(a_sample(kind=Kind.EVALUATION, evaluation=evil, worker_id=evil)),
        )
        run.hand.send(
            run.topics.dead_letters,
            0,
            encode(
                DeadLetter(
                    topic=evil,
                    partition=0,
                    offset=1,
                    reason=evil,
                    error_class=evil,
                    owner=evil,
                    headers={evil: evil.encode()},
                )
            ),
        )
        yield run


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_what_commands_print_of_an_archive_is_harmless(run: SimulatedRun, tmp_path: Path) -> None:
    path = tmp_path / "run.zip"
    export_archive(run.broker, run.topics, store_of(run), path, weights=WeightsChoice.ALL)
    for words in (["audit"], ["dead-letters"], ["dead-letters", "--json"], ["lineage", "--step", "1"]):
        output = CliRunner().invoke(cli, [*words, "--archive", str(path)], standalone_mode=False).output
        assert is_harmless(output), words
        assert "evil" in output or words[0] != "dead-letters"


def test_an_audit_that_names_hostile_records_is_harmless(
    run: SimulatedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of them is a sample of a worker with such a name, another a manifest."""
    run.hand.send(runs_topic(run.topics.prefix), 0, encode(replace(a_manifest_of(run), config_sha256=evil)))
    names = [*run_topic_names(run.topics), runs_topic(run.topics.prefix)]
    recorded = with_samples(copied(run, names), run.topics, hostile)
    tell(audit_run(recorded, run.topics, store_of(run), settles_within_seconds=0.0))
    output = capsys.readouterr().out
    assert "evil" in output
    assert is_harmless(output)


def test_the_lineage_of_samples_with_hostile_names_is_harmless(run: SimulatedRun) -> None:
    recorded = with_samples(copied(run, run_topic_names(run.topics)), run.topics, hostile)
    (first, *_) = [record for record in recorded.all(run.topics.samples) if record.value != b"no sample"]
    sample = decode_as(Sample, first.value or b"")
    lines = list(answer_lines(Lineage(recorded, run.topics).sample(sample.sample_id)))
    assert any("evil" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_what_watching_shows_is_harmless(run: SimulatedRun, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(file=io.StringIO(), width=200)
    with RunProgress(run.broker, run.topics) as progress:
        view = progress.read_to_end(10.0)
    assert any(worker.worker_id == evil for worker in view.workers)
    with Lines(facts, 1) as lines, Picture(facts, console) as picture:
        for display in (lines, picture):
            display.show(view, [], 1.0)
            display.tell(evil)
    shown = console.file
    assert isinstance(shown, io.StringIO)
    output = capsys.readouterr().out
    assert "evil" in output
    assert "step " in output
    assert is_harmless(output)
    assert is_harmless(shown.getvalue())


def test_no_label_of_a_metric_holds_what_a_record_says(run: SimulatedRun) -> None:
    measured = generate_latest(run.metrics.registry).decode()
    assert "rollog_broker_dead_letters_total{" in measured
    assert "evil" not in measured


def copied(run: SimulatedRun, names: list[str]) -> RecordedTopics:
    return RecordedTopics.copied(run.broker, names)


def hostile(sample: Sample) -> Sample:
    return replace(sample, worker_id=evil, error_message=evil)
