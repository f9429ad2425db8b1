"""Listing dead letters and writing what they hold again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.broker_topics import read_to_end
from support.recorded_run import recorded_run

from consumers.dead_letters import (
    Reinjection,
    chosen_dead_letters,
    dead_letter_header,
    read_dead_letters,
    reinject,
)
from rollog.kernel.broker.ports import Record
from rollog.kernel.errors import ConfigError
from rollog.rules.dead_letters import dead_letter
from rollog.rules.headers import SampleLimits
from schemas import Sample
from schemas.codec import decode_as, encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from support.simulated_run import SimulatedRun


limits = SampleLimits(num_partitions=2, num_replicas=2, temperature=1.0)


def set_aside(
    run: SimulatedRun, topic: str, value: bytes | None, *, partition: int = 0, offset: int = 90
) -> None:
    """Write a letter as the owner of a topic would, of a record it could not read then."""
    record = Record(
        topic=topic, partition=partition, offset=offset, value=value, headers=[("type", b"Sample")]
    )
    letter = dead_letter(
        record, reason="unknown schema", error_class="SchemaError", owner="trainer", most_bytes=1 << 20
    )
    run.hand.send(run.topics.dead_letters, 0, encode(letter), headers=headers_of(letter))


def a_first_sample(run: SimulatedRun) -> Record:
    for _ in range(50):
        run.calm_round()
        found = read_to_end(run.broker, run.topics.samples, range(2))
        if len(found) > 1:
            return next(record for record in found if record.value != b"no sample")
    raise AssertionError("no sample came")


def outcome(run: SimulatedRun, chosen: list[int] | None = None) -> list[tuple[int, bool, str]]:
    found: list[Reinjection] = reinject(run.broker, run.topics, limits=limits, chosen=chosen)
    return [(each.letter_id, each.is_done, each.reason) for each in found]


def offsets(run: SimulatedRun) -> list[int]:
    return [letter.letter_id for letter in read_dead_letters(run.broker, run.topics)]


def test_the_letters_of_a_run_say_place_owner_and_reason() -> None:
    with recorded_run() as run:
        (stored,) = read_dead_letters(run.broker, run.topics)
        letter = stored.letter
        assert (letter.topic, letter.partition, letter.value) == (run.topics.samples, 1, b"no sample")
        assert letter.owner == "trainer"
        assert "not a sample" in letter.reason


def test_what_can_be_used_now_is_written_again_once_and_the_run_comes_to_its_end() -> None:
    with recorded_run(is_finished=False) as run:
        sample = a_first_sample(run)
        set_aside(run, run.topics.samples, sample.value, partition=sample.partition)
        set_aside(run, run.topics.samples, sample.value, partition=sample.partition)
        letters = offsets(run)
        first, second = letters[-2:]
        assert outcome(run, [first, second]) == [
            (first, True, ""),
            (second, False, "was written again already"),
        ]
        assert outcome(run, [first, second]) == [
            (first, False, "was written again already"),
            (second, False, "was written again already"),
        ]
        again = [
            record
            for record in read_to_end(run.broker, run.topics.samples, range(2))
            if record.header(dead_letter_header) is not None
        ]
        assert [(each.value, each.partition) for each in again] == [(sample.value, sample.partition)]
        assert again[0].header(dead_letter_header) == str(first).encode()
        assert decode_as(Sample, again[0].value or b"").group_id % 2 == again[0].partition
        run.is_audited = False  # an audit would find that the letters are of no record
        run.come_to_the_end()


def test_what_only_its_owner_may_write_and_what_is_still_bad_is_left_alone() -> None:
    with recorded_run(is_finished=False) as run:
        sample = a_first_sample(run)
        topics = run.topics
        start = len(offsets(run))
        set_aside(run, topics.tasks, b"x")
        set_aside(run, topics.control, b"x")
        set_aside(run, "rollog.other.samples", sample.value)
        set_aside(run, topics.samples, b"x")
        set_aside(run, topics.samples, sample.value, partition=1 - sample.partition)
        set_aside(run, topics.evaluations, sample.value)
        run.hand.send(topics.dead_letters, 0, b"no letter")
        found = outcome(run, offsets(run)[start:])
        assert not any(is_done for _, is_done, _ in found)
        reasons = [reason for _, _, reason in found]
        assert "tasks are void" in reasons[0]
        assert "only written by their owner" in reasons[1]
        assert "only written by their owner" in reasons[2]
        assert "not a sample" in reasons[3]
        assert "belongs on partition" in reasons[4]
        assert "of kind training" in reasons[5]
        assert "only written by their owner" in reasons[6]


def test_a_run_that_is_over_and_letters_that_do_not_exist_are_refused() -> None:
    with recorded_run() as run:
        with pytest.raises(ConfigError, match="is over"):
            outcome(run)
        with pytest.raises(ConfigError, match="no dead letter 77"):
            outcome(run, [77])


def test_a_letter_is_listed_by_its_id_and_one_that_is_not_there_is_named() -> None:
    with recorded_run() as run:
        set_aside(run, run.topics.samples, b"neither")
        letters = read_dead_letters(run.broker, run.topics)
        assert chosen_dead_letters(letters, None) == letters
        assert chosen_dead_letters(letters, [letters[1].letter_id]) == letters[1:]
        with pytest.raises(ConfigError, match="no dead letter 99"):
            chosen_dead_letters(letters, [letters[0].letter_id, 99])
