"""Samples of sessions: forks, turns and payloads hang together, or the record is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from schemas import (
    FinishReason,
    Fork,
    Kind,
    Payload,
    Sample,
    SchemaError,
    Segment,
    Status,
    TurnSpan,
    float32_array,
    int32_array,
    uint8_array,
)
from schemas.codec import decode, encode


def segments(num_tokens: int, version: int = 0) -> tuple[Segment, ...]:
    return (Segment(version=version, weights_digest="ab", start=0, end=num_tokens),)


def a_fork(**changes: Any) -> Fork:
    """Begins as 1 2 | 3 of the sample below, goes on with context 8, samples 5 and 6."""
    fork = Fork(
        parent=0,
        shared=3,
        context=int32_array([8]),
        token_ids=int32_array([5, 6]),
        behaviour_logprobs=float32_array([-1, -2]),
        loss_mask=uint8_array([1, 1]),
        segments=segments(2, version=1),
        reason="edited",
    )
    return replace(fork, **changes)


def a_turn(number: int, sequence: int, start: int, end: int, **changes: Any) -> TurnSpan:
    turn = TurnSpan(number=number, sequence=sequence, start=start, end=end, finish_reason=FinishReason.STOP)
    return replace(turn, **changes)


def a_sample(**changes: Any) -> Sample:
    """Sequence 0 is 1 2 | 3 7 4: two turns with context between; sequence 1 is a fork."""
    sample = Sample(
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
        segments=segments(3, version=2),
        reward=1.0,
        forks=(a_fork(),),
        turns=(a_turn(0, 0, 0, 1), a_turn(1, 0, 2, 3), a_turn(2, 1, 0, 2)),
    )
    return replace(sample, **changes)


def test_a_fork_is_read_with_the_ids_that_it_shares() -> None:
    sample = decode(encode(a_sample()))
    assert isinstance(sample, Sample)
    own, fork = sample.rows()
    assert own.prompt_token_ids.tolist() == [1, 2]
    assert fork.prompt_token_ids.tolist() == [1, 2, 3, 8]
    assert fork.token_ids.tolist() == [5, 6]


def test_a_fork_of_a_fork_shares_through_both() -> None:
    second = a_fork(parent=1, shared=5, context=int32_array([9]))
    sample = a_sample(forks=(a_fork(), second), turns=())
    assert sample.rows()[2].prompt_token_ids.tolist() == [1, 2, 3, 8, 5, 9]


def test_the_oldest_version_of_any_sequence_counts() -> None:
    assert a_sample().first_version == 1


def test_turns_are_counted_where_they_are_named_and_else_by_the_mask() -> None:
    assert a_sample().num_turns == 3
    assert a_sample(forks=(), turns=()).num_turns == 2
    encode(a_sample(turn_rewards=(0.0, 0.5, 1.0)))


def test_forks_without_turns_leave_no_number_of_turns_for_a_late_reward_to_fit() -> None:
    """The loss mask of the first sequence counts its own turns alone, and nothing says which are before which."""
    assert a_sample(turns=()).forks
    assert a_sample(turns=()).num_turns == 0


def test_a_turn_that_is_not_trained_has_mask_0() -> None:
    untrained = a_turn(2, 1, 0, 2, untrained="superseded")
    fork = a_fork(loss_mask=uint8_array([0, 0]))
    encode(a_sample(forks=(fork,), turns=(*a_sample().turns[:2], untrained)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"forks": (a_fork(parent=1),)}, r"forks\[0\].parent is 1, not a sequence before it"),
        ({"forks": (a_fork(shared=6),)}, r"forks\[0\].shared is 6; its parent has 5 token ids"),
        ({"forks": (a_fork(loss_mask=uint8_array([1])),)}, r"forks\[0\].token_ids has 2 entries"),
        ({"forks": (a_fork(segments=()),)}, "segments cover 0 of 2"),
        (
            {"forks": (a_fork(behaviour_logprobs=float32_array([-1, np.nan])),)},
            r"behaviour_logprobs\[1\] of sequence 1 is nan",
        ),
        ({"forks": (a_fork(segments=segments(2, version=-1)),)}, "a segment of version -1"),
        ({"turns": (a_turn(1, 0, 0, 1),)}, "not numbered 0, 1, 2"),
        ({"turns": (a_turn(0, 2, 0, 1),)}, "turn 0 is of sequence 2; there are 2"),
        ({"turns": (a_turn(0, 0, 0, 4),)}, r"turn 0 is \[0, 4\) of 3 token ids"),
        ({"turns": (a_turn(0, 0, 0, 1), a_turn(1, 0, 0, 1))}, "turn 1 overlaps another one of sequence 0"),
        ({"turns": (a_turn(0, 0, 0, 1),)}, r"loss_mask\[2\] of sequence 0 is 1; its turns say otherwise"),
        ({"turn_rewards": (1.0,)}, "turn_rewards has 1 entries"),
    ],
)
def test_what_does_not_hang_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        encode(a_sample(**changes))


def emptied(sample: Sample, num_tokens: tuple[int, ...] = (3, 2)) -> Sample:
    nothing: dict[str, Any] = {
        "token_ids": int32_array(),
        "behaviour_logprobs": float32_array(),
        "loss_mask": uint8_array(),
    }
    forks = tuple(replace(fork, **nothing, context=int32_array()) for fork in sample.forks)
    payload = Payload(
        sha256="ab" * 32, num_bytes=100, num_prompt_tokens=2, num_tokens=num_tokens, num_trained_tokens=4
    )
    return replace(
        sample, **nothing, prompt_token_ids=int32_array(), forks=forks, payload=payload, response_text=""
    )


def test_a_sample_whose_arrays_stand_elsewhere_keeps_what_rules_need() -> None:
    sample = emptied(a_sample())
    assert decode(encode(sample)) == sample


def test_arrays_stand_in_one_place() -> None:
    with pytest.raises(SchemaError, match="they stand in one place"):
        encode(replace(a_sample(), payload=emptied(a_sample()).payload))
    with pytest.raises(SchemaError, match="1 entries for 2 sequences"):
        encode(emptied(a_sample(), num_tokens=(3,)))
    with pytest.raises(SchemaError, match="segments cover 3 of 4"):
        encode(emptied(a_sample(), num_tokens=(4, 2)))
