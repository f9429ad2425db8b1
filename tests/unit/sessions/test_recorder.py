"""The recorder: what extends, what forks, what is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.remembering_engine import RememberingEngine, check_recording

from producers.sessions.budgets import Budget
from producers.sessions.errors import BudgetSpent, CallsInFlight, Overlong, SessionFailed
from producers.sessions.recorder import Session
from producers.sessions.recording import Counted, Untrained
from schemas import FinishReason

budget = Budget(turns=100, tokens=1000, turn_tokens=50, context_tokens=200)


def a_session(**limits: int) -> tuple[Session, RememberingEngine]:
    return Session(replace(budget, **limits)), RememberingEngine()


def test_calls_that_go_on_make_one_sequence_with_context_between_turns() -> None:
    session, engine = a_session()
    session.record([1, 2], engine.generate([1, 2], [3, 4], versions=[5, 6]))
    session.record([1, 2, 3, 4, 7, 8], engine.generate([1, 2, 3, 4, 7, 8], [9], versions=[7]))
    recording = session.recording("d{}".format)
    rows = recording.rows
    assert rows.context.tolist() == [1, 2]
    assert rows.token_ids.tolist() == [3, 4, 7, 8, 9]
    assert rows.loss_mask.tolist() == [1, 1, 0, 0, 1]
    assert [(each.version, each.start, each.end) for each in rows.segments] == [
        (5, 0, 1),
        (6, 1, 4),
        (7, 4, 5),
    ]
    assert rows.segments[0].weights_digest == "d5"
    assert [(turn.start, turn.end) for turn in recording.turns] == [(0, 2), (4, 5)]
    assert recording.forks == ()
    check_recording(recording, engine.sampled)


def test_a_cut_answer_that_is_continued_has_no_context_between_its_turns() -> None:
    session, engine = a_session()
    session.record([1], engine.generate([1], [2, 3], finish_reason=FinishReason.LENGTH))
    session.record([1, 2, 3], engine.generate([1, 2, 3], [4]))
    recording = session.recording(str)
    assert recording.rows.token_ids.tolist() == [2, 3, 4]
    assert [(turn.start, turn.end, turn.finish_reason) for turn in recording.turns] == [
        (0, 2, FinishReason.LENGTH),
        (2, 3, FinishReason.STOP),
    ]


def test_a_second_way_on_from_one_turn_is_a_fork_that_shares_it() -> None:
    session, engine = a_session()
    session.record([1, 2], engine.generate([1, 2], [3]))
    session.record([1, 2, 3, 7], engine.generate([1, 2, 3, 7], [4]))
    session.record([1, 2, 3, 8], engine.generate([1, 2, 3, 8], [5]))
    recording = session.recording(str)
    (fork,) = recording.forks
    assert (fork.parent, fork.shared, fork.reason) == (0, 3, "branched")
    assert fork.rows.context.tolist() == [8]
    assert fork.rows.token_ids.tolist() == [5]
    assert recording.counts == {Counted.FORKS: 1}
    check_recording(recording, engine.sampled)


def test_a_fork_of_a_fork_names_it_and_repeats_nothing() -> None:
    session, engine = a_session()
    for input_ids, said in [([1], [2]), ([9, 9], [3]), ([9, 9, 3, 4], [5]), ([9, 9, 3, 6], [7])]:
        session.record(input_ids, engine.generate(input_ids, said))
    recording = session.recording(str)
    assert [(fork.parent, fork.shared, fork.reason) for fork in recording.forks] == [
        (0, 0, "new_context"),
        (1, 3, "branched"),
    ]
    assert recording.ids(2) == [9, 9, 3, 6, 7]
    check_recording(recording, engine.sampled)


def test_a_reason_given_by_the_caller_names_the_fork() -> None:
    session, engine = a_session()
    session.record([1], engine.generate([1], [2]), reason="never used: the first call forks from nothing")
    session.record([1], engine.generate([1], [3]), reason="tools")
    session.record([1], engine.generate([1], [4]))
    assert [fork.reason for fork in session.recording(str).forks] == ["tools", "repeated"]


def test_an_answer_asked_again_after_it_was_delivered_is_superseded_once_its_twin_goes_on() -> None:
    session, engine = a_session()
    session.record([1], engine.generate([1], [2]))
    session.record([1], engine.generate([1], [3]))
    assert session.recording(str).counts == {Counted.FORKS: 1}
    session.record([1, 3, 5], engine.generate([1, 3, 5], [4]))
    recording = session.recording(str)
    assert [turn.untrained for turn in recording.turns] == [Untrained.SUPERSEDED, None, None]
    assert recording.rows.loss_mask.tolist() == [0]
    assert recording.counts == {Counted.FORKS: 1, Counted.SUPERSEDED: 1}
    check_recording(recording, engine.sampled)


def test_a_twin_asked_before_the_whole_answer_supersedes_nothing() -> None:
    session, engine = a_session()
    first, second = session.ask(1), session.ask(1)
    session.record([1], engine.generate([1], [2]), call=first)
    session.record([1], engine.generate([1], [3]), call=second)
    session.record([1, 3, 5], engine.generate([1, 3, 5], [4]))
    assert [turn.untrained for turn in session.recording(str).turns] == [None, None, None]


def test_an_answer_never_written_whole_is_untrained_unless_something_goes_on_from_it() -> None:
    session, engine = a_session()
    session.record([1], engine.generate([1], [2]), is_delivered=False)
    session.record([8], engine.generate([8], [9]), is_delivered=False)
    session.record([1, 2, 3], engine.generate([1, 2, 3], [4]))
    recording = session.recording(str)
    assert [turn.untrained for turn in recording.turns] == [None, Untrained.UNDELIVERED, None]
    assert recording.untrained_tokens == {Untrained.UNDELIVERED: 1}
    session.deliver(1)
    assert session.recording(str).turns[1].untrained is None


def test_constrained_turns_are_in_the_record_with_mask_0() -> None:
    session, engine = a_session()
    session.record([1], engine.generate([1], [2, 3]), is_constrained=True)
    session.record([1, 2, 3], engine.generate([1, 2, 3], [4]))
    recording = session.recording(str)
    assert recording.rows.loss_mask.tolist() == [0, 0, 1]
    assert recording.counts == {Counted.CONSTRAINED: 1}
    check_recording(recording, engine.sampled)


def test_a_session_in_which_nothing_can_be_trained_fails_and_says_why() -> None:
    session, engine = a_session()
    with pytest.raises(SessionFailed, match="without a turn") as failed:
        session.recording(str)
    assert failed.value.name == "no_trainable_turn"
    session.record([1], engine.generate([1], [2]), is_constrained=True)
    with pytest.raises(SessionFailed, match="none of 1 turns can be trained: 1 constrained"):
        session.recording(str)


def test_an_input_that_the_engine_saw_differently_fails_the_session_for_good() -> None:
    session, engine = a_session()
    with pytest.raises(SessionFailed, match="differ at position 1") as failed:
        session.record([1, 2], engine.generate([1, 3], [4]), seen_ids=[1, 3])
    assert failed.value.name == "PromptMismatch"
    with pytest.raises(SessionFailed, match="position 1"):
        session.recording(str)
    with pytest.raises(SessionFailed, match="position 1"):
        session.ask(1)


def test_turns_without_tokens_or_with_bad_logprobs_fail_the_session() -> None:
    session, engine = a_session()
    with pytest.raises(SessionFailed, match="no token"):
        session.record([1], engine.generate([1], []))
    session, engine = a_session()
    generation = engine.generate([1], [2])
    generation.behaviour_logprobs[0] = np.nan
    with pytest.raises(SessionFailed, match="1 logprobs, of which 0 are finite"):
        session.record([1], generation)


def test_versions_that_do_not_cover_the_turn_fail_the_session() -> None:
    session, engine = a_session()
    with pytest.raises(SessionFailed, match="without gaps"):
        session.record([1], replace(engine.generate([1], [2, 3]), spans=()))


def test_more_forks_than_allowed_fail_by_name() -> None:
    session, engine = a_session(forks=2)
    for said in (2, 3, 4):
        session.record([1], engine.generate([1], [said]))
    with pytest.raises(SessionFailed, match="has 2 forks and a call begins another") as failed:
        session.record([1], engine.generate([1], [5]))
    assert failed.value.name == "TooManyForks"


def test_an_aborted_generation_is_no_turn() -> None:
    session, engine = a_session()
    with pytest.raises(ValueError, match="aborted"):
        session.record([1], engine.generate([1], [2], finish_reason=FinishReason.ABORT))


def test_a_call_gets_the_least_of_what_is_asked_what_is_left_and_the_room() -> None:
    session, _ = a_session(tokens=60)
    assert session.ask(10, 7).max_tokens == 7
    assert session.ask(10).max_tokens == 50
    assert session.ask(10).max_tokens == 3
    with pytest.raises(CallsInFlight, match="3 calls under way"):
        session.ask(10)
    session, _ = a_session()
    assert session.ask(199).max_tokens == 1
    with pytest.raises(Overlong, match="200 tokens and the context takes 200"):
        session.ask(200)


def test_a_budget_that_is_used_up_ends_the_session_as_cut() -> None:
    session, engine = a_session(turns=1)
    session.record([1], engine.generate([1], [2]), call=session.ask(1))
    assert not session.recording(str).is_cut
    with pytest.raises(BudgetSpent, match="1 of 1 turns"):
        session.ask(3)
    assert session.recording(str).is_cut


def test_tokens_of_a_call_that_ended_without_a_turn_are_wasted_not_lost() -> None:
    session, engine = a_session()
    engine.generate([1], [2, 3])
    session.abandon(session.ask(1), wasted_tokens=2)
    session.record([1], engine.generate([1], [4]))
    session.count([Counted.OVERRIDDEN, Counted.CLOSING, Counted.CLOSING])
    recording = session.recording(str)
    assert recording.wasted_tokens == 2
    assert recording.counts == {Counted.OVERRIDDEN: 1, Counted.CLOSING: 2}
    check_recording(recording, engine.sampled)


def test_the_first_failure_stays() -> None:
    session, _ = a_session()
    session.fail(SessionFailed("time_out", "the agent took too long"))
    session.fail(SessionFailed("other", "later"))
    assert session.failure is not None
    assert session.failure.name == "time_out"
