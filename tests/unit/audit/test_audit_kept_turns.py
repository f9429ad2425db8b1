"""I15 by the records alone: what a trained sample says of its turns is what the log kept of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.builders import a_sample

from consumers.audit.findings import Check, Place
from consumers.audit.kept_turns import KeptTurns
from rollog.kernel.broker.ports import Record
from schemas import (
    FinishReason,
    Fork,
    Segment,
    Turn,
    TurnBase,
    TurnSpan,
    float32_array,
    int32_array,
    uint8_array,
)
from schemas.codec import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas import Sample

place = Place("samples", 0, 3)


def segment(end: int, version: int = 0, start: int = 0) -> Segment:
    return Segment(version=version, weights_digest="ab", start=start, end=end)


def a_turn(number: int, context: Sequence[int], *token_ids: int, **changes: Any) -> Turn:
    turn = Turn(
        task_id="1.1",
        worker_id="w",
        group_id=0,
        replica=0,
        attempt=0,
        number=number,
        context=int32_array(context),
        token_ids=int32_array(token_ids),
        behaviour_logprobs=float32_array([-token for token in token_ids]),
        segments=(segment(len(token_ids)),),
        finish_reason=FinishReason.STOP,
    )
    return replace(turn, **changes)


first = a_turn(0, [1, 2], 3, 4)
second = a_turn(1, [8], 5, parent=0, shared=4)


def an_episode(**changes: Any) -> Sample:
    """1 2 | 3 4 8 5, turns by the mask."""
    values: dict[str, Any] = {
        "task_id": "1.1",
        "prompt_token_ids": int32_array([1, 2]),
        "token_ids": int32_array([3, 4, 8, 5]),
        "behaviour_logprobs": float32_array([-3, -4, 0, -5]),
        "loss_mask": uint8_array([1, 1, 0, 1]),
        "segments": (segment(4),),
    }
    return a_sample(**(values | changes))


def checked(sample: Sample, *turns: Turn, is_cut: bool = False) -> Check:
    check = Check(name="I15", what="", unit="")
    kept = KeptTurns(check, is_kept=True, is_cut=is_cut)
    for offset, turn in enumerate(turns):
        kept.add(Record(topic="turns", partition=0, offset=offset, value=encode(turn)))
    kept.trained(sample, place)
    return check


def test_an_episode_is_what_the_log_kept() -> None:
    check = checked(an_episode(), first, second)
    assert (check.num_checked, check.findings) == (2, [])


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": int32_array([3, 4, 8, 6])},
        {"token_ids": int32_array([3, 4, 9, 5])},
        {"prompt_token_ids": int32_array([2, 2])},
        {"behaviour_logprobs": float32_array([-3, -4, 0, -6])},
        {"segments": (segment(2), segment(4, version=1, start=2))},
    ],
)
def test_what_is_otherwise_in_the_sample_is_found(changes: dict[str, Any]) -> None:
    assert len(checked(an_episode(**changes), first, second).findings) == 1


def test_a_turn_that_was_never_kept_is_found() -> None:
    (finding,) = checked(an_episode(), first).findings
    assert "turn 1 is not on the log" in finding.message


def test_turns_that_were_taken_over_are_found_in_their_own_attempt() -> None:
    base = TurnBase(task_id="1.1", numbers=(0,))
    own = a_turn(1, [8], 5, task_id="1.2", attempt=1, base=base, parent=0, shared=4)
    sample = an_episode(task_id="1.2", resumed_from="1.1")
    assert checked(sample, first, a_turn(1, [9], 7, parent=0, shared=4), own).findings == []


def test_an_attempt_that_made_nothing_itself_is_its_predecessors_chain() -> None:
    assert checked(an_episode(task_id="1.2", resumed_from="1.1"), first, second).findings == []


def test_a_fork_stands_behind_what_it_shares() -> None:
    fork = Fork(
        parent=0,
        shared=4,
        context=int32_array([9]),
        token_ids=int32_array([6]),
        behaviour_logprobs=float32_array([-6]),
        loss_mask=uint8_array([1]),
        segments=(segment(1),),
    )
    spans = [(0, 0, 2), (0, 3, 4), (1, 0, 1)]
    turns = tuple(
        TurnSpan(number=number, sequence=sequence, start=start, end=end, finish_reason=FinishReason.STOP)
        for number, (sequence, start, end) in enumerate(spans)
    )
    sample = an_episode(forks=(fork,), turns=turns)
    third = a_turn(2, [9], 6, parent=0, shared=4)
    assert checked(sample, first, second, third).findings == []
    assert len(checked(sample, first, second, replace(third, context=int32_array([7]))).findings) == 1


def test_what_retention_took_is_not_checked() -> None:
    check = checked(an_episode(), is_cut=True)
    assert (check.num_unchecked, check.num_checked, check.findings) == (2, 0, [])


def test_bases_that_lead_round_and_rubbish_stop_nobody() -> None:
    base = TurnBase(task_id="1.1", numbers=(0,))
    assert len(checked(an_episode(), a_turn(1, [8], 5, base=base)).findings) == 2
    kept = KeptTurns(Check(name="", what="", unit=""), is_kept=True)
    kept.add(Record(topic="turns", partition=0, offset=0, value=b"rubbish"))
    assert kept.num_unreadable == 1
