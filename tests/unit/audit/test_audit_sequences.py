"""I11 and I12 by one record: sequences and turns of a trained sample that do not hang together are named."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.forked_samples import a_session, a_turn

from consumers.audit.findings import Check, Place
from consumers.audit.samples import lag_of
from consumers.audit.sequences import check_sequences, num_counted_tokens, sequence_faults
from schemas import (
    FinishReason,
    Fork,
    Kind,
    Payload,
    Sample,
    Segment,
    Status,
    float32_array,
    int32_array,
    uint8_array,
)

if TYPE_CHECKING:
    from collections.abc import Callable

place = Place("samples", 0, 7)


def a_sample() -> Sample:
    """1 2 | 3 . 4 and, behind 1 2 3 and 8, 5 6."""
    return Sample(
        sample_id="g7.r1.a0",
        task_id="3-41",
        kind=Kind.TRAINING,
        status=Status.FINISHED,
        epoch=3,
        grant_id="",
        worker_id="w",
        group_id=7,
        replica=1,
        attempt=0,
        prompt_id="p",
        prompt_token_ids=int32_array([1, 2]),
        token_ids=int32_array([3, 7, 4]),
        behaviour_logprobs=float32_array([-1, 0, -2]),
        loss_mask=uint8_array([1, 0, 1]),
        segments=(segment(2, 0, 3),),
        reward=1.0,
        finish_reason=FinishReason.STOP,
        forks=(a_fork(),),
        turns=(a_turn(0, 0, 0, 1), a_turn(1, 0, 2, 3), a_turn(2, 1, 0, 2)),
    )


def segment(version: int, start: int, end: int) -> Segment:
    return Segment(version=version, weights_digest="ab", start=start, end=end)


def a_fork() -> Fork:
    return Fork(
        parent=0,
        shared=3,
        context=int32_array([8]),
        token_ids=int32_array([5, 6]),
        behaviour_logprobs=float32_array([-1, -2]),
        loss_mask=uint8_array([1, 1]),
        segments=(segment(1, 0, 2),),
    )


def with_fork(**changes: object) -> Callable[[Sample], Sample]:
    return lambda sample: replace(sample, forks=(replace(a_fork(), **changes),))  # type: ignore[arg-type]


def with_turns(*turns: tuple[int, int, int, int]) -> Callable[[Sample], Sample]:
    return lambda sample: replace(sample, turns=tuple(a_turn(*turn) for turn in turns))


def test_a_whole_sample_has_no_fault_and_every_sequence_is_counted() -> None:
    check = Check(name="I11, I12", what="", unit="")
    check_sequences(check, a_sample(), place)
    assert (check.num_checked, check.findings) == (2, [])
    for replica in range(20):
        assert not list(sequence_faults(a_session(3, replica, seed=4)))


def test_a_sample_without_turns_says_too_little_to_be_checked() -> None:
    check = Check(name="I11, I12", what="", unit="")
    check_sequences(check, replace(a_sample(), turns=(), forks=()), place)
    assert check.num_checked == 0


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (with_fork(parent=1), "sequence 1: its parent is sequence 1, which does not come before it"),
        (with_fork(shared=6), "sequence 1: it shares 6 ids of sequence 0, which has 5"),
        (
            with_fork(loss_mask=uint8_array([1, 0])),
            r"sequence 1: loss_mask\[1\] is 0; its turns say otherwise",
        ),
        (with_fork(loss_mask=uint8_array([0, 0])), r"sequence 1: loss_mask\[0\] is 0"),
        (with_turns((0, 0, 0, 1), (1, 0, 2, 3)), "sequence 1: no turn is in it"),
        (with_turns((0, 0, 0, 1), (1, 1, 0, 1), (2, 1, 0, 2), (3, 0, 2, 3)), "token 0 is in 2 turns"),
        (with_turns((0, 0, 2, 3), (1, 0, 0, 1), (2, 1, 0, 2)), "turns do not follow each other by number"),
        (with_turns((0, 0, 0, 1), (2, 1, 0, 2)), "sequence 0: its tokens do not begin and end with sampled"),
        (
            lambda sample: replace(sample, loss_mask=uint8_array([1, 1, 1])),
            r"sequence 0: loss_mask\[1\] is 1; its turns say otherwise",
        ),
        (
            lambda sample: replace(sample, segments=(segment(1, 0, 1), segment(2, 1, 3))),
            "sequence 0: the segment of version 2 begins with context at token 1",
        ),
    ],
)
def test_what_does_not_hang_together_is_named(alter: Callable[[Sample], Sample], message: str) -> None:
    check = Check(name="I11, I12", what="", unit="")
    check_sequences(check, alter(a_sample()), place)
    (finding,) = check.findings
    assert (finding.place, finding.record_id) == (place, "g7.r1.a0")
    assert re.search(message, finding.message)


def test_the_lag_is_that_of_the_oldest_token_and_the_length_that_of_the_turns() -> None:
    assert lag_of(a_sample(), 3) == 2
    assert num_counted_tokens(a_sample()) == 4
    assert num_counted_tokens(replace(a_sample(), turns=(), forks=())) == 2


def test_what_is_in_a_payload_counts_as_not_checked() -> None:
    payload = Payload(
        sha256="ab" * 32, num_bytes=9, num_prompt_tokens=2, num_tokens=(3, 2), num_trained_tokens=4
    )
    empty: dict[str, Any] = {
        "token_ids": int32_array(),
        "behaviour_logprobs": float32_array(),
        "loss_mask": uint8_array(),
    }
    sample = replace(a_sample(), payload=payload, forks=(replace(a_fork(), **empty),), **empty)
    check = Check(name="I11, I12", what="", unit="")
    check_sequences(check, sample, place)
    assert (check.num_checked, check.num_unchecked, check.findings) == (0, 2, [])
    assert num_counted_tokens(sample) == sample.num_sampled_tokens == 4
