"""Generated trees of calls, held against an engine that remembers every input."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.remembering_engine import RememberingEngine, check_recording

from producers.sessions.budgets import Budget, Call
from producers.sessions.errors import CallRefused, SessionFailed
from producers.sessions.recorder import Session
from producers.sessions.recording import Recording, Untrained
from schemas import FinishReason

few_ids = st.lists(st.integers(1, 3), max_size=3)
"""Few different ids, so that inputs and turns often begin alike by chance."""

roomy = Budget(turns=1000, tokens=10_000, turn_tokens=100, context_tokens=10_000)


@dataclass
class Asked:
    """A call under way, and what the oracle knows of the calls that were delivered as it was asked."""

    input_ids: tuple[int, ...]
    call: Call
    delivered_before: frozenset[int]


@dataclass
class Agent:
    """Draws calls as agents make them, and keeps a naive record of what became of each."""

    session: Session = field(default_factory=lambda: Session(roomy))
    engine: RememberingEngine = field(default_factory=RememberingEngine)
    calls: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    delivered: set[int] = field(default_factory=set)
    constrained: set[int] = field(default_factory=set)
    asked_of: list[Asked] = field(default_factory=list)
    under_way: list[Asked] = field(default_factory=list)
    wasted: int = 0

    def act(self, data: st.DataObject) -> None:
        """One thing that an agent, its client or the network does."""
        kinds = ["new"]
        if self.calls:
            kinds += ["continue", "continue", "continue", "continue", "same", "cut", "edit", "deliver"]
        if self.under_way:
            kinds += ["record", "record", "lose"]
        kind = data.draw(st.sampled_from(kinds))
        if kind in ("record", "lose"):
            asked = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
            (self.record if kind == "record" else self.lose)(data, asked)
            return
        at = data.draw(st.integers(0, len(self.calls) - 1)) if self.calls else 0
        if kind == "deliver":
            self.session.deliver(at)
            self.delivered.add(at)
            return
        input_ids = self.input_of(data, kind, at)
        asked = Asked(input_ids, self.session.ask(len(input_ids)), frozenset(self.delivered))
        if data.draw(st.booleans()):
            self.under_way.append(asked)
        else:
            self.record(data, asked)

    def input_of(self, data: st.DataObject, kind: str, at: int) -> tuple[int, ...]:
        if kind == "new":
            return (data.draw(st.integers(1, 3)), *data.draw(few_ids))
        before, said = self.calls[at]
        if kind == "same":
            return before
        if kind == "cut":
            return (*before, *said)
        if kind == "continue":
            return (*before, *said, *data.draw(few_ids))
        kept = data.draw(st.integers(1, len(before) + len(said)))
        return (*(*before, *said)[:kept], *data.draw(few_ids))

    def record(self, data: st.DataObject, asked: Asked) -> None:
        said = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        versions = sorted(data.draw(st.lists(st.integers(0, 4), min_size=len(said), max_size=len(said))))
        generation = self.engine.generate(asked.input_ids, said, versions=versions)
        is_delivered, is_constrained = data.draw(st.booleans()), data.draw(st.integers(0, 9)) == 0
        number = self.session.record(
            asked.input_ids,
            generation,
            call=asked.call,
            is_delivered=is_delivered,
            is_constrained=is_constrained,
        )
        assert number == len(self.calls)
        self.calls.append((asked.input_ids, tuple(said)))
        self.asked_of.append(asked)
        if is_delivered:
            self.delivered.add(number)
        if is_constrained:
            self.constrained.add(number)

    def lose(self, data: st.DataObject, asked: Asked) -> None:
        said = data.draw(few_ids)
        self.engine.generate(asked.input_ids, said)
        self.session.abandon(asked.call, len(said))
        self.wasted += len(said)

    def continued_by(self, number: int) -> list[tuple[int, ...]]:
        """Full ids of the longest earlier calls that this call's input begins with (all alike), or none."""
        input_ids = self.calls[number][0]
        fulls = [(*before, *said) for before, said in self.calls[:number]]
        begun_with = [full for full in fulls if input_ids[: len(full)] == full]
        longest = max(map(len, begun_with), default=0)
        return [full for full in begun_with if len(full) == longest]


def a_played_session(data: st.DataObject, most_acts: int = 25) -> Agent:
    agent = Agent()
    for _ in range(data.draw(st.integers(1, most_acts))):
        agent.act(data)
    for asked in agent.under_way:
        agent.record(data, asked)
    agent.under_way.clear()
    return agent


def recorded(agent: Agent) -> Recording | None:
    """What the session comes to, or None where nothing of it can be trained."""
    with suppress(SessionFailed):
        return agent.session.recording(str)
    assert agent.session.failure is None
    return None


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_trained_token_has_before_it_exactly_what_the_engine_saw_and_stands_once(
    data: st.DataObject,
) -> None:
    agent = a_played_session(data)
    recording = recorded(agent)
    if recording is not None:
        check_recording(recording, agent.engine.sampled)
        assert recording.wasted_tokens == agent.wasted
        assert [turn.number for turn in recording.turns] == list(range(len(agent.calls)))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_call_forks_only_where_no_sequence_ends_with_the_longest_call_it_begins_with(
    data: st.DataObject,
) -> None:
    agent = a_played_session(data)
    recording = recorded(agent)
    if recording is None:
        return
    ends: dict[int, tuple[int, ...]] = {}
    for number, (input_ids, said) in enumerate(agent.calls):
        continued = agent.continued_by(number)
        may_extend = [sequence for sequence, full in ends.items() if full in continued]
        sequence = recording.turns[number].sequence
        if may_extend:
            assert sequence in may_extend
        else:
            assert sequence == len(ends)
        ends[sequence] = (*input_ids, *said)
    assert len(ends) == len(recording.sequences)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_turn_is_untrained_only_for_the_reason_that_a_naive_account_finds(data: st.DataObject) -> None:
    agent = a_played_session(data, most_acts=15)
    recording = recorded(agent)
    if recording is None:
        return
    for turn in recording.turns:
        if turn.number in agent.constrained:
            assert turn.untrained is Untrained.CONSTRAINED
            continue
        # Where two calls have equal ids, both may be the one that goes on; elsewhere it is plain.
        full = (*agent.calls[turn.number][0], *agent.calls[turn.number][1])
        goes_on = [at for at in range(turn.number + 1, len(agent.calls)) if full in agent.continued_by(at)]
        is_plain = sum((*before, *said) == full for before, said in agent.calls) == 1
        if not goes_on:
            assert (turn.untrained is Untrained.UNDELIVERED) == (turn.number not in agent.delivered)
        elif is_plain:
            assert turn.untrained is None
        if turn.untrained is Untrained.SUPERSEDED:
            twins = [
                at
                for at, asked in enumerate(agent.asked_of)
                if asked.input_ids == agent.calls[turn.number][0] and turn.number in asked.delivered_before
            ]
            assert twins


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_calls_in_parallel_never_sample_more_than_the_budget(data: st.DataObject) -> None:
    budget = Budget(turns=4, tokens=12, turn_tokens=5, context_tokens=30)
    session, engine = Session(budget), RememberingEngine()
    under_way: list[Call] = []
    for _ in range(data.draw(st.integers(1, 20))):
        is_over = data.draw(st.booleans())
        if under_way and is_over:
            call = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            num_tokens = data.draw(st.integers(0, call.max_tokens))
            if num_tokens:
                session.record([1, 2], engine.generate([1, 2], [3] * num_tokens), call=call)
            else:
                session.abandon(call)
        else:
            try:
                asked = data.draw(st.none() | st.integers(1, 8))
                under_way.append(session.ask(data.draw(st.integers(1, 40)), asked))
            except CallRefused:
                continue
            assert 1 <= under_way[-1].max_tokens <= min(5, asked or 5)
    assert session.num_turns + len(under_way) <= 4
    assert len(engine.sampled) + sum(call.max_tokens for call in under_way) <= 12


def test_the_check_finds_a_token_whose_context_was_another() -> None:
    engine = RememberingEngine()
    session = Session(roomy)
    generation = engine.generate([1, 2], [3], finish_reason=FinishReason.STOP)
    session.record([1, 1], generation)
    with pytest.raises(AssertionError):
        check_recording(session.recording(str), engine.sampled)
