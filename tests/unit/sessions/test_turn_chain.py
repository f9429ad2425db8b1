"""Which turns of earlier attempts are taken over, and with which inputs."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.written_turns import newest_chain

from producers.sessions.turn_chain import Branches, TakenTurn, placed_input, shared_ids
from schemas import FinishReason, Segment, Turn, TurnBase, float32_array, int32_array

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random


def a_turn(
    attempt: int,
    number: int,
    context: Sequence[int],
    token: int,
    *,
    base: TurnBase | None = None,
    parent: int = -1,
    shared: int = 0,
) -> Turn:
    return Turn(
        task_id=f"1.{attempt + 1}",
        worker_id="w",
        group_id=7,
        replica=1,
        attempt=attempt,
        number=number,
        base=base,
        parent=parent,
        shared=shared,
        context=int32_array(context),
        token_ids=int32_array([token]),
        behaviour_logprobs=float32_array([-1]),
        segments=(Segment(version=attempt, weights_digest="ab", start=0, end=1),),
        finish_reason=FinishReason.STOP,
    )


def whole_input(taken: TakenTurn) -> list[int]:
    """The whole input of a turn, put together again."""
    context: list[int] = taken.turn.context.tolist()
    if taken.parent is None:
        return context
    before = [*whole_input(taken.parent), *taken.parent.turn.token_ids.tolist()]
    return [*before[: taken.turn.shared], *context]


def tokens(turns: Sequence[Turn], *, earliest: int = 0, attempt: int = 9) -> list[int] | None:
    chain = newest_chain(turns, earliest_attempt=earliest, attempt=attempt)
    return None if chain is None else [int(taken.turn.token_ids[0]) for taken in chain.turns]


first = a_turn(0, 0, [1, 2], 3)
second = a_turn(0, 1, [8], 4, parent=0, shared=3)
third = a_turn(0, 2, [9], 5, parent=1, shared=5)


def test_the_turns_of_one_attempt_are_its_chain_with_whole_inputs() -> None:
    chain = newest_chain([first, second, third], earliest_attempt=0, attempt=1)
    assert chain is not None
    assert [whole_input(taken) for taken in chain.turns] == [[1, 2], [1, 2, 3, 8], [1, 2, 3, 8, 4, 9]]
    assert [taken.num_input_ids for taken in chain.turns] == [2, 4, 6]


def test_what_was_taken_over_stands_before_the_own_turns() -> None:
    own = a_turn(1, 2, [7], 6, base=TurnBase(task_id="1.1", numbers=(0, 1)), parent=1, shared=5)
    assert tokens([first, second, third, own]) == [3, 4, 6]


def test_turns_are_taken_over_in_the_order_in_which_they_were_served() -> None:
    own = a_turn(1, 2, [7], 6, base=TurnBase(task_id="1.1", numbers=(1, 0)))
    assert tokens([first, second, own]) == [4, 3, 6]


def test_a_worker_that_was_given_up_writes_into_its_own_branch() -> None:
    own = a_turn(1, 1, [7], 6, base=TurnBase(task_id="1.1", numbers=(0,)), parent=0, shared=3)
    assert tokens([first, own, second, third]) == [3, 6]


def test_the_newest_attempt_that_wrote_counts_and_not_the_longest() -> None:
    assert tokens([first, second, third, a_turn(1, 0, [1, 2], 6)]) == [6]
    assert tokens([first, second, third, a_turn(1, 0, [1, 2], 6)], attempt=1) == [3, 4, 5]


def test_attempts_before_the_earliest_one_are_not_taken_over() -> None:
    assert tokens([first, second], earliest=1) is None


def test_a_turn_that_was_written_twice_counts_once() -> None:
    assert tokens([first, first, second]) == [3, 4]


def test_a_chain_ends_at_a_gap() -> None:
    assert tokens([first, third]) == [3]


def test_forged_bases_and_parents_lead_nowhere() -> None:
    round_in_circles = [
        a_turn(0, 0, [1], 3, base=TurnBase(task_id="1.2", numbers=(0,))),
        a_turn(1, 0, [1], 3, base=TurnBase(task_id="1.1", numbers=(0,))),
    ]
    assert tokens(round_in_circles) is None
    assert tokens([first, a_turn(1, 1, [1], 3, base=TurnBase(task_id="1.1", numbers=(4,)))]) is None
    assert tokens([first, a_turn(1, 2, [1], 3, base=TurnBase(task_id="1.1", numbers=(0, 0)))]) is None
    assert tokens([first, a_turn(0, 1, [8], 4, parent=0, shared=9)]) == [3]
    assert tokens([first, a_turn(0, 1, [8], 4, shared=2)]) == [3]


def test_a_turn_that_says_another_attempt_than_its_task_did_is_passed_over() -> None:
    forged = replace(third, attempt=5, token_ids=int32_array([6]))
    assert tokens([first, second, forged, third]) == [3, 4, 5]


def test_turns_that_go_on_from_each_other_a_thousand_times_are_read_and_compared() -> None:
    num_turns = 5000
    turns = [
        a_turn(0, number, [8], 4, parent=number - 1, shared=2 * number if number else 0)
        for number in range(num_turns)
    ]
    chain = newest_chain(turns, earliest_attempt=0, attempt=1)
    assert chain is not None
    whole = int32_array([8, 4] * num_turns)
    assert shared_ids(whole, chain.turns[-1:]) == [2 * num_turns]
    assert shared_ids(whole[:-3], chain.turns[-1:]) == [2 * num_turns - 3]


def test_what_is_known_of_a_turn_is_not_compared_again() -> None:
    chain = newest_chain([first, second, third], earliest_attempt=0, attempt=1)
    assert chain is not None
    before, last = chain.turns[1:]
    assert shared_ids(int32_array([7, 7, 7, 7, 7, 9, 5]), [last], {before: before.num_ids}) == [7]
    assert shared_ids(int32_array([1, 2, 3, 8, 4, 9, 5]), [last], {before: 3}) == [3]


def test_a_long_input_that_is_named_again_and_again_is_held_once() -> None:
    """A stranger's few bytes for each turn must not become a copy of its first one."""
    context = [7] * 1_000_000
    opening = a_turn(0, 0, context, 3)
    following = [a_turn(0, number, [], 4, parent=0, shared=len(context)) for number in range(1, 500)]
    tracemalloc.start()
    chain = newest_chain([opening, *following], earliest_attempt=0, attempt=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert chain is not None
    assert len(chain.turns) == 500
    assert peak < opening.context.nbytes


def test_the_base_of_an_attempt_is_that_of_its_first_turn_and_is_held_once() -> None:
    base = TurnBase(task_id="1.1", numbers=(0, 1))
    as_before = [
        first,
        second,
        a_turn(1, 2, [7], 6, base=base, parent=1, shared=5),
        a_turn(1, 3, [7], 7, base=base),
    ]
    once = [*as_before[:3], a_turn(1, 3, [7], 7)]
    assert tokens(as_before) == tokens(once) == [3, 4, 6, 7]
    # Turns of calls that run at once may come in another order.
    assert tokens([*as_before[:2], *reversed(as_before[2:])]) == [3, 4, 6, 7]
    assert tokens([first, a_turn(1, 3, [7], 7, base=TurnBase(task_id="1.1", numbers=(9,))), *once[1:]]) == [
        3,
        4,
        6,
        7,
    ]


def held(branches: Branches) -> tuple[list[int] | None, int]:
    """The tokens of the newest chain, and how much is held for it."""
    chain = branches.newest_chain()
    taken = None if chain is None else [int(taken.turn.token_ids[0]) for taken in chain.turns]
    return taken, branches.num_bytes


def test_what_the_newest_chain_does_not_need_can_be_dropped() -> None:
    branches = Branches(earliest_attempt=0, attempt=4)
    of_first = [first, second, third, *(a_turn(0, number, [9], 5) for number in range(3, 9))]
    of_second = [
        a_turn(1, number, [7], 10 + number, base=TurnBase(task_id="1.1", numbers=(0, 1, 2)))
        for number in (3, 4, 5)
    ]
    apart = [a_turn(2, number, [6], 20 + number) for number in (0, 1)]
    newest = a_turn(3, 2, [5], 30, base=TurnBase(task_id="1.2", numbers=(0, 3)))
    for turn in [*of_first, *of_second, *apart, newest]:
        assert branches.add(turn, num_bytes=1)
    before = held(branches)
    assert before[0] == [3, 13, 30]
    branches.drop_unneeded()
    # Turns 0 to 2 of the first attempt, turn 3 of the second, the newest, and the numbers of two bases.
    assert held(branches) == ([3, 13, 30], before[1] - (6 + 2 + 2))
    assert not any(branches.add(turn, num_bytes=1) for turn in [*of_first[3:], *of_second[1:], *apart])
    branches.drop_unneeded()
    assert held(branches)[0] == [3, 13, 30]


def test_a_chain_that_goes_back_to_what_was_dropped_leads_nowhere() -> None:
    branches = Branches(earliest_attempt=0, attempt=9)
    for turn in (first, second, a_turn(1, 0, [7], 6)):
        branches.add(turn, num_bytes=1)
    branches.drop_unneeded()
    branches.add(a_turn(2, 2, [7], 8, base=TurnBase(task_id="1.1", numbers=(0, 1))), num_bytes=1)
    assert held(branches)[0] is None


def test_dropping_goes_round_in_no_circle_and_takes_no_number_for_granted() -> None:
    branches = Branches(earliest_attempt=0, attempt=9)
    for turn in (
        a_turn(0, 0, [1], 3, base=TurnBase(task_id="1.2", numbers=(0,))),
        a_turn(1, 0, [1], 3, base=TurnBase(task_id="1.1", numbers=(-4, 2**62))),
        a_turn(3, 0, [1], 3, base=TurnBase(task_id="1.4", numbers=(0,))),
    ):
        branches.add(turn, num_bytes=1)
    branches.drop_unneeded()
    assert held(branches)[0] is None


@given(random=st.randoms(use_true_random=False))
def test_dropping_leaves_the_newest_chain_as_it_is(random: Random) -> None:
    """Attempts that each take over some of the one before, diverge, and are written on by zombies."""
    branches = Branches(earliest_attempt=0, attempt=9)
    lengths: dict[int, int] = {}
    for attempt in range(random.randint(1, 5)):
        before = random.choice([None, *lengths])
        numbers = (
            []
            if before is None
            else random.sample(range(lengths[before]), random.randint(0, lengths[before]))
        )
        base = (
            TurnBase(task_id=f"1.{before + 1}", numbers=tuple(numbers))
            if before is not None and numbers
            else None
        )
        lengths[attempt] = len(numbers) + random.randint(1, 4)
        for number in range(len(numbers), lengths[attempt]):
            branches.add(a_turn(attempt, number, [number], 10 * attempt + number, base=base), num_bytes=1)
    before_dropping = held(branches)
    branches.drop_unneeded()
    assert held(branches)[0] == before_dropping[0]
    assert held(branches)[1] <= before_dropping[1]


ids = st.lists(st.integers(0, 2), max_size=6)


@given(inputs=st.lists(ids, max_size=6))
def test_an_input_comes_back_from_its_parent_and_what_is_shared(inputs: list[list[int]]) -> None:
    written: list[Turn] = []
    before: list[TakenTurn] = []
    for number, input_ids in enumerate(inputs):
        array = int32_array(input_ids)
        parent, shared = placed_input(array, before)
        turn = a_turn(0, number, input_ids[shared:], number % 3, parent=parent, shared=shared)
        written.append(turn)
        before.append(TakenTurn(turn, before[parent] if parent >= 0 else None))
    chain = newest_chain(written, earliest_attempt=0, attempt=1)
    read = [] if chain is None else [whole_input(taken) for taken in chain.turns]
    assert read == inputs
    longest = [
        max((_common(each, [*whole_input(taken), *taken.turn.token_ids]) for taken in before[:n]), default=0)
        for n, each in enumerate(inputs)
    ]
    assert [turn.shared for turn in written] == longest


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    length = min(len(one), len(other))
    differs = np.flatnonzero(np.asarray(one[:length]) != np.asarray(other[:length]))
    return int(differs[0]) if differs.size else length
