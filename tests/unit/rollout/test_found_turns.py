"""What a pass over `turns` holds: of the wanted replicas alone, and no more than it may."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.written_turns import a_turn, headers_like, taking_over

from producers.rollout.found_turns import FoundTurns
from rollog.kernel.broker.ports import Record, Unread
from schemas import Segment, TurnBase, int32_array
from schemas.codec import encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from schemas import RolloutTask, Turn

mib = 1 << 20


def a_record(turn: Turn, *, offset: int = 5, partition: int = 0) -> Record:
    return Record(
        topic="turns", partition=partition, offset=offset, value=encode(turn), headers=headers_of(turn)
    )


def finding(tasks: Sequence[RolloutTask], *, all_bytes: int = mib, replica_bytes: int = mib) -> FoundTurns:
    return FoundTurns(tasks, most_bytes=all_bytes, most_replica_bytes=replica_bytes)


def lengths(found: FoundTurns) -> dict[int, int]:
    """How many turns each task takes over; those put aside are left out."""
    return {place: 0 if chain is None else len(chain.turns) for place, chain in found.chains().items()}


def test_each_task_gets_the_turns_of_its_replica_from_its_position_on() -> None:
    found = finding([taking_over(1), taking_over(2, position=6), taking_over(3)])
    for number in range(3):
        found.take(a_record(a_turn(1, number)))
        found.take(a_record(a_turn(2, number)))
        found.take(a_record(a_turn(4, number)))
    assert lengths(found) == {0: 3, 1: 0, 2: 0}


def test_turns_on_another_partition_are_nobodys() -> None:
    found = finding([taking_over(1, partition=2)])
    found.take(a_record(a_turn(1, 0), partition=1))
    assert lengths(found) == {0: 0}


def test_two_attempts_of_one_replica_are_told_apart() -> None:
    found = finding([taking_over(1, attempt=1), taking_over(1, attempt=2)])
    found.take(a_record(a_turn(1, 0)))
    found.take(a_record(a_turn(1, 1)))
    found.take(a_record(a_turn(1, 0, attempt=1)))
    assert lengths(found) == {0: 2, 1: 1}


def test_what_is_no_turn_is_counted_and_passed_over() -> None:
    found = finding([taking_over(1)])
    found.take(Record(topic="turns", partition=0, offset=1, value=b"rubbish", headers=headers_like(1)))
    found.take(Record(topic="turns", partition=0, offset=2, value=None, headers=headers_like(1)))
    unread = Unread(num_bytes=50_000, reason="inflates to 600 MB")
    found.take(Record(topic="turns", partition=0, offset=3, value=None, unread=unread))
    found.take(
        Record(topic="turns", partition=0, offset=4, value=encode(a_turn(2, 0)), headers=headers_like(1))
    )
    found.take(a_record(a_turn(1, 0)))
    assert (lengths(found), found.num_unreadable) == ({0: 1}, 2)


def test_what_is_of_other_replicas_is_not_even_decoded() -> None:
    found = finding([taking_over(1)])
    found.take(Record(topic="turns", partition=0, offset=1, value=b"rubbish", headers=headers_like(2)))
    assert found.num_unreadable == 0


def test_a_stranger_who_fills_one_replica_costs_only_that_one() -> None:
    found = finding([taking_over(1), taking_over(2)], all_bytes=2 * mib, replica_bytes=mib)
    found.take(a_record(a_turn(2, 0)))
    for number in range(40):
        found.take(a_record(a_turn(1, number, num_tokens=10_000)))
        assert found.num_bytes <= mib + 10_000
    found.take(a_record(a_turn(2, 1)))
    assert (lengths(found), found.given_up) == ({0: 0, 1: 2}, ["2.1"])


def test_a_turn_that_is_repeated_for_ever_is_held_once() -> None:
    found = finding([taking_over(1)])
    for _ in range(1000):
        found.take(a_record(a_turn(1, 0, num_tokens=1000)))
    assert (lengths(found), found.given_up) == ({0: 1}, [])


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    most=st.integers(10, 60),
)
def test_what_is_put_aside_is_read_in_further_passes_and_never_more_than_one_each(
    sizes: list[int], order: random.Random, most: int
) -> None:
    """Turn by turn in any order, of replicas of any size: the bound holds, and whoever fits in it is answered."""
    records = [a_record(a_turn(group, number)) for group, size in enumerate(sizes) for number in range(size)]
    order.shuffle(records)
    most_bytes = most * 2500
    waiting = dict(enumerate(taking_over(group) for group in range(len(sizes))))
    answers: dict[int, int] = {}
    num_passes = 0
    while waiting:
        num_passes += 1
        found = finding(list(waiting.values()), all_bytes=most_bytes, replica_bytes=most_bytes)
        for record in records:
            found.take(record)
            assert found.num_bytes <= most_bytes
        answered = {list(waiting)[place]: length for place, length in lengths(found).items()}
        assert answered
        answers |= answered
        waiting = {group: task for group, task in waiting.items() if group not in answered}
    assert num_passes <= len(sizes)
    # A turn counts as 2,048 bytes, those of its segment, and its own.
    whole = {group: size for group, size in enumerate(sizes) if size * 2500 <= most_bytes}
    assert {group: answers[group] for group in whole} == whole


@pytest.mark.parametrize("shape", ["many small turns", "many segments", "many numbers of a base"])
def test_what_is_held_takes_no_more_memory_than_is_counted(shape: str) -> None:
    num = 2000
    tiny = a_turn(1, 0, num_tokens=1)
    match shape:
        case "many small turns":
            turns = [replace(tiny, number=number, task_id=f"t{number}") for number in range(num)]
        case "many segments":
            ones = int32_array([1] * num)
            segments = tuple(
                Segment(version=at + 1000, weights_digest=f"{at:016x}", start=at, end=at + 1)
                for at in range(num)
            )
            logprobs = ones.astype("<f4")
            turns = [replace(tiny, token_ids=ones, behaviour_logprobs=logprobs, segments=segments)]
        case _:
            base = TurnBase(task_id="x", numbers=tuple(range(1000, 1000 + num)))
            turns = [replace(tiny, base=base)]
    values = [encode(turn) for turn in turns]
    found = finding([taking_over(1)], all_bytes=64 * mib, replica_bytes=64 * mib)
    found.take(a_record(replace(tiny, number=5, parent=-1, shared=0)))
    tracemalloc.start()
    for value in values:
        found.take(Record(topic="turns", partition=0, offset=1, value=value, headers=headers_like(1)))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < found.num_bytes
