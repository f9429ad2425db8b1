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


def written_in_turn(*attempts: tuple[int, int], num_own: int, is_base_repeated: bool) -> list[Record]:
    """Attempts that took so many turns over from an attempt (-1: from none), and wrote `num_own` of their own."""
    records = []
    for attempt, (before, num_taken) in enumerate(attempts):
        base = TurnBase(task_id=f"{before + 1}.1", numbers=tuple(range(num_taken))) if num_taken else None
        for number in range(num_taken, num_taken + num_own):
            is_told = is_base_repeated or number == num_taken
            records.append(
                a_record(a_turn(1, number, attempt=attempt, num_tokens=1, base=base if is_told else None))
            )
    return records


@pytest.mark.parametrize("is_base_repeated", [True, False])
def test_a_long_rollout_that_died_twice_is_taken_over_whole(is_base_repeated: bool) -> None:
    """Whether each turn says what it stands behind, as older workers write it, or the first one alone."""
    num = 600
    records = written_in_turn((-1, 0), (0, num), num_own=num, is_base_repeated=is_base_repeated)
    # With each base counted anew these would be 14 MB more.
    found = finding([taking_over(1, attempt=2)], all_bytes=4 * mib, replica_bytes=4 * mib)
    for record in records:
        found.take(record)
    assert (lengths(found), found.given_up) == ({0: 2 * num}, [])


def test_a_rollout_that_diverged_again_and_again_is_taken_over_though_all_its_branches_are_too_much() -> None:
    num = 100
    records = written_in_turn(
        (-1, 0), (0, 50), (1, 60), (2, 30), (-1, 0), (4, 90), num_own=num, is_base_repeated=False
    )
    for attempt, length in ((4, 130), (6, 190)):
        found = finding([taking_over(1, attempt=attempt)], all_bytes=mib, replica_bytes=mib // 2)
        for record in records:
            found.take(record)
        assert (lengths(found), found.given_up) == ({0: length}, [])


def test_a_zombie_that_writes_on_costs_nothing_of_what_is_newer() -> None:
    found = finding([taking_over(1, attempt=2)], all_bytes=mib, replica_bytes=mib // 2)
    for record in written_in_turn((-1, 0), (0, 5), num_own=10, is_base_repeated=False):
        found.take(record)
    for number in range(10, 2000):
        found.take(a_record(a_turn(1, number, num_tokens=1)))
    assert (lengths(found), found.given_up) == ({0: 15}, [])


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
    # A turn counts as 2,048 bytes, those of its segment, and its own; an attempt as 1,024.
    whole = {group: size for group, size in enumerate(sizes) if size * 2500 + 1024 <= most_bytes}
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
