"""Calls of a session in the worker, without whoever asks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.remembering_engine import RememberingEngine

from producers.sessions import recorded_calls
from producers.sessions.budgets import Budget
from producers.sessions.errors import SessionFailed
from producers.sessions.recorded_calls import Question, RecordedCalls
from producers.sessions.recorder import Session
from producers.sessions.recording import Counted
from schemas import int32_array

budget = Budget(turns=50, tokens=10_000, turn_tokens=10, context_tokens=4000)


def calls_of(session: Session, *, says: Exception | None = None) -> RecordedCalls:
    engine = RememberingEngine()

    async def generate(input_ids: list[int], max_tokens: int, stop: object) -> object:
        del max_tokens, stop
        if says is not None:
            raise says
        return engine.generate(input_ids, [7])

    return RecordedCalls("g0.r0.a0", session, generate, parallel_calls=4)  # type: ignore[arg-type]


def question(number: int, num_ids: int = 10) -> Question:
    return Question(digest=f"{number}", input_ids=int32_array([number] * num_ids), said=b"note")


def test_the_past_is_kept_as_far_as_there_is_room_and_the_oldest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorded_calls, "_most_kept_bytes", 500)

    async def scenario() -> None:
        session = Session(budget)
        calls = calls_of(session)
        for number in range(30):
            assert (await calls.ask(question(number))).number == number
        kept = [call.number for call in calls.history]
        assert kept == list(range(30 - len(kept), 30))
        assert 1 < len(kept) < 30
        assert all(call.said == b"note" for call in calls.history)
        # What is gone is asked anew, what is kept is not.
        await calls.ask(question(29))
        assert session.counts[Counted.REJOINED] == 1
        await calls.ask(question(0))
        assert session.num_turns == 31

    asyncio.run(scenario())


def test_whatever_goes_wrong_with_a_call_fails_its_session_by_name() -> None:
    async def scenario() -> None:
        session = Session(budget)
        calls = calls_of(session, says=KeyError("a defect"))
        for _ in range(2):
            with pytest.raises(SessionFailed) as failed:
                await calls.ask(question(0))
            assert failed.value.name == "KeyError"

    asyncio.run(scenario())


def test_of_an_ended_session_nothing_changes() -> None:
    async def scenario() -> None:
        session = Session(budget)
        calls = calls_of(session)
        await calls.ask(question(0))
        calls.close()
        calls.deliver(0)
        calls.refuse(Counted.REFUSED)
        calls.count([Counted.STOP_STRING])
        assert not session.is_delivered(0)
        assert session.counts == {Counted.UNDELIVERED: 1}

    asyncio.run(scenario())


def test_a_retry_of_a_delivered_call_joins_it_and_the_same_question_does_not() -> None:
    async def scenario() -> None:
        session = Session(budget)
        calls = calls_of(session)
        first = await calls.ask(question(0))
        calls.deliver(first.number)
        assert (await calls.ask(replace(question(0), is_retry=True))).number == first.number
        assert (await calls.ask(question(0))).number != first.number

    asyncio.run(scenario())
