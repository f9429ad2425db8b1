"""Turns that were recorded are served again as long as the rollout asks the same; what it makes itself is kept."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support import builders
from support.written_turns import newest_chain

from producers.engines.ports import Generation, VersionSpan
from producers.sessions.journal import Journal
from schemas import FinishReason, RolloutTask, Turn, float32_array, int32_array

if TYPE_CHECKING:
    from collections.abc import Sequence


class Log:
    """Every turn that was written."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.may_write: asyncio.Event | None = None

    async def write(self, turn: Turn, partition: int) -> None:
        assert partition == 3
        self.turns.append(turn)
        if self.may_write is not None:
            await self.may_write.wait()


def a_task(attempt: int) -> RolloutTask:
    return builders.a_task(3, 1, task_id=f"1.{attempt + 1}", attempt=attempt, sample_partition=3)


def a_generation(token: int, version: int = 0) -> Generation:
    return Generation(
        token_ids=int32_array([token]),
        behaviour_logprobs=float32_array([-1]),
        spans=(VersionSpan(version=version, start=0, end=1),),
        finish_reason=FinishReason.STOP,
    )


def a_journal(log: Log, attempt: int) -> Journal:
    taken = newest_chain(log.turns, earliest_attempt=0, attempt=attempt)
    return Journal(a_task(attempt), "w", log, digest_of=lambda version: f"d{version}", taken=taken)


def ask(journal: Journal, input_ids: Sequence[int], token: int, version: int = 0) -> int:
    """The token that is sampled after an input: served again, or this one."""
    served = journal.served(input_ids)
    if served is None:
        served = a_generation(token, version)
        asyncio.run(journal.keep(input_ids, served))
    return int(served.token_ids[0])


def test_a_rollout_that_asks_the_same_gets_the_same_and_generates_nothing() -> None:
    log = Log()
    before = a_journal(log, 0)
    assert [ask(before, [1], 5), ask(before, [1, 5, 2], 6)] == [5, 6]
    assert before.resumed_from is None
    after = a_journal(log, 1)
    assert [ask(after, [1], 7), ask(after, [1, 5, 2], 8), ask(after, [1, 5, 2, 6, 3], 9)] == [5, 6, 9]
    assert (after.resumed_from, after.num_served) == ("1.1", 2)
    assert [turn.number for turn in log.turns] == [0, 1, 2]
    assert log.turns[2].base is not None
    assert log.turns[2].base.numbers == (0, 1)


def test_what_turns_stand_behind_is_written_once() -> None:
    log = Log()
    before = a_journal(log, 0)
    ids = [1]
    for number in range(5):
        ids = [*ids, ask(before, ids, number), 7]
    after, ids = a_journal(log, 1), [1]
    for number in range(9):
        ids = [*ids, ask(after, ids, number), 7]
    assert [None if turn.base is None else turn.base.numbers for turn in log.turns[5:]] == [
        (0, 1, 2, 3, 4),
        None,
        None,
        None,
    ]
    again, ids = a_journal(log, 2), [1]
    for number in range(9):
        ids = [*ids, ask(again, ids, 99), 7]
        assert ids[-2] == number
    assert (again.num_served, len(log.turns)) == (9, 9)


def test_turns_before_the_first_is_acknowledged_say_what_they_stand_behind_too() -> None:
    """The first one may be refused; those behind it are written all the same."""
    log = Log()
    ask(a_journal(log, 0), [1], 5)
    after = a_journal(log, 1)
    assert ask(after, [1], 6) == 5

    async def at_once() -> None:
        log.may_write = asyncio.Event()
        assert after.served([2]) is None
        kept = [asyncio.create_task(after.keep([2, token], a_generation(token))) for token in (7, 8)]
        await asyncio.sleep(0)
        assert len(log.turns) == 3
        log.may_write.set()
        await asyncio.gather(*kept)
        await after.keep([2, 9], a_generation(9))

    asyncio.run(at_once())
    assert [turn.base and turn.base.numbers for turn in log.turns] == [None, (0,), (0,), None]


@pytest.mark.parametrize("seed", range(20))
def test_conversations_that_go_on_in_turn_are_served_again_as_they_were(seed: int) -> None:
    """Calls that extend any conversation, end it early, or begin another one; then the same once more."""
    rng = random.Random(seed)
    log, calls = Log(), list[list[int]]()
    before, conversations = a_journal(log, 0), [[1]]
    for number in range(60):
        place = rng.randrange(len(conversations))
        calls.append(list(conversations[place]))
        token = ask(before, calls[-1], number)
        conversations[place] = [*conversations[place], token, rng.choice([1, 2])]
        if rng.random() < 0.2:
            conversations.append(conversations[place][: rng.randint(0, 5)])
    after = a_journal(log, 1)
    assert [ask(after, ids, -1) for ids in calls] == list(range(60))
    assert after.num_served == 60


def test_the_first_other_call_drops_the_rest() -> None:
    log = Log()
    before = a_journal(log, 0)
    ask(before, [1], 5)
    ask(before, [1, 5, 2], 6)
    after = a_journal(log, 1)
    assert ask(after, [1], 7) == 5
    assert ask(after, [1, 5, 3], 8) == 8
    assert ask(after, [1, 5, 2], 9) == 9
    chain = newest_chain(log.turns, earliest_attempt=0, attempt=2)
    assert chain is not None
    assert [int(taken.turn.token_ids[0]) for taken in chain.turns] == [5, 8, 9]


def test_two_calls_of_one_input_are_served_one_after_the_other() -> None:
    log = Log()
    before = a_journal(log, 0)
    ask(before, [1], 5)
    ask(before, [1], 6)
    after = a_journal(log, 1)
    assert [ask(after, [1], 7) for _ in range(3)] == [5, 6, 7]


def test_each_turn_that_is_served_again_is_told_of() -> None:
    log = Log()
    before = a_journal(log, 0)
    ask(before, [1], 5, version=4)
    ask(before, [2], 6, version=3)
    told: list[Turn] = []
    taken = newest_chain(log.turns, earliest_attempt=0, attempt=1)
    after = Journal(a_task(1), "w", log, digest_of=str, taken=taken, on_served=told.append)
    assert ask(after, [2], 7) == 6
    assert told == log.turns[1:]


def test_a_journal_holds_as_much_as_its_turns_add_and_not_their_whole_inputs() -> None:
    num_turns, num_tokens = 100, 500
    log = Log()
    journal, ids = a_journal(log, 0), [1] * num_tokens
    tracemalloc.start()
    for number in range(num_turns):
        made = replace(
            a_generation(number),
            token_ids=int32_array([number] * num_tokens),
            behaviour_logprobs=float32_array([-1] * num_tokens),
            spans=(VersionSpan(version=0, start=0, end=num_tokens),),
        )
        assert journal.served(ids) is None
        asyncio.run(journal.keep(ids, made))
        ids = [*ids, *([number] * num_tokens), *([1] * num_tokens)]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Whole inputs would be 20 MB.
    assert held < 4 << 20


@pytest.mark.parametrize("seed", range(50))
def test_a_rollout_killed_again_and_again_makes_at_most_the_turn_in_flight_anew(seed: int) -> None:
    rng = random.Random(seed)
    log, generated = Log(), 0
    kills = 0
    for attempt in range(40):
        journal, ids, made = a_journal(log, attempt), [1], []
        for number in range(20):
            served = journal.served(ids)
            if served is None:
                generated += 1
                if rng.random() < 0.1:
                    kills += 1
                    break
                served = a_generation(1000 * attempt + number)
                asyncio.run(journal.keep(ids, served))
            if rng.random() < 0.05:
                kills += 1
                break
            made.append(int(served.token_ids[0]))
            ids = [*ids, made[-1], 7]
        else:
            assert generated - 20 <= kills
            chain = newest_chain(log.turns, earliest_attempt=0, attempt=attempt + 1)
            if journal.num_served < 20:
                assert chain is not None
                assert [int(taken.turn.token_ids[0]) for taken in chain.turns] == made
            return
    raise AssertionError("no attempt came to its end")
