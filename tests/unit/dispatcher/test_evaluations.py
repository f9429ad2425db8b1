"""Which held-out prompts still need an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.builders import a_sample, a_task

from producers.dispatcher.evaluation_tracker import EvaluationKey, EvaluationTracker, WantedEvaluation
from rollog.settings.generation import EvaluationConfig
from schemas import Kind, RolloutTask, Sample, Status


def a_tracker(num_prompts: int = 2, num_seats: int = 1, **changes: Any) -> EvaluationTracker:
    config = EvaluationConfig(**({"every_steps": 5, "num_prompts": 10, "sampled": False} | changes))
    return EvaluationTracker(config, num_prompts, num_seats)


def take_all(tracker: EvaluationTracker) -> list[tuple[str, int, int]]:
    taken = []
    while (wanted := first_wanted(tracker)) is not None:
        tracker.take(wanted)
        tracker.issued(task_for(wanted))
        taken.append((wanted.key.name, wanted.key.version, wanted.prompt_index))
    return taken


def first_wanted(tracker: EvaluationTracker) -> WantedEvaluation | None:
    keys = tracker.unanswered()
    return tracker.wanted(keys[0]) if keys else None


def task_for(wanted: WantedEvaluation) -> RolloutTask:
    return a_task(
        wanted.prompt_index,
        kind=Kind.EVALUATION,
        evaluation=wanted.key.name,
        pinned_version=wanted.key.version,
        attempt=wanted.attempt,
        task_id=f"1.{wanted.prompt_index}-{wanted.attempt}",
    )


def an_answer(index: int, version: int, *, seat: int = 0, attempt: int = 0, **changes: Any) -> Sample:
    return a_sample(
        index,
        seat,
        kind=Kind.EVALUATION,
        evaluation="greedy",
        pinned_version=version,
        task_id=f"1.{index}-{attempt}",
        **changes,
    )


def test_the_first_version_every_fifth_and_the_last_are_evaluated() -> None:
    tracker = a_tracker()
    for version in (0, 1, 5):
        tracker.start(version)
    assert {version for _, version, _ in take_all(tracker)} == {0, 5}
    tracker.start(7, is_final=True)
    assert {version for _, version, _ in take_all(tracker)} == {7}


def test_the_first_and_the_last_are_also_sampled() -> None:
    tracker = a_tracker(sampled=True)
    tracker.start(0)
    tracker.start(5)
    assert {(name, version) for name, version, _ in take_all(tracker)} == {
        ("greedy", 0),
        ("sampled", 0),
        ("greedy", 5),
    }


def test_an_evaluation_is_settled_when_every_prompt_is_answered() -> None:
    tracker = a_tracker()
    tracker.start(0)
    take_all(tracker)
    tracker.ended(an_answer(0, 0), is_task_over=True)
    assert not tracker.is_complete(0)
    tracker.ended(an_answer(1, 0), is_task_over=True)
    assert tracker.is_complete(0)


def test_a_failed_prompt_is_asked_again_and_given_up_after_its_attempts() -> None:
    tracker = a_tracker(num_prompts=1, max_attempts=2)
    tracker.start(0)
    for attempt in range(2):
        wanted = first_wanted(tracker)
        assert wanted is not None
        assert wanted.attempt == attempt
        take_all(tracker)
        tracker.ended(an_answer(0, 0, attempt=attempt, status=Status.FAILED), is_task_over=True)
    assert first_wanted(tracker) is None
    assert tracker.is_complete(0)


def test_a_game_is_answered_when_each_of_its_seats_is() -> None:
    tracker = a_tracker(num_prompts=1, num_seats=2)
    tracker.start(0)
    take_all(tracker)
    for seat in (1, 0):
        assert not tracker.is_complete(0)
        tracker.ended(an_answer(0, 0, seat=seat), is_task_over=seat == 0)
    assert tracker.is_complete(0)
    assert first_wanted(tracker) is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_game_of_which_a_seat_has_no_answer_is_asked_again_once(order: tuple[int, int]) -> None:
    tracker = a_tracker(num_prompts=1, num_seats=2)
    tracker.start(0)
    take_all(tracker)
    ends = {0: Status.FINISHED, 1: Status.LOST}
    for seat in order:
        tracker.ended(an_answer(0, 0, seat=seat, status=ends[seat]), is_task_over=seat == order[-1])
    again = first_wanted(tracker)
    assert again is not None
    assert again.attempt == 1
    assert len(take_all(tracker)) == 1
    tracker.ended(an_answer(0, 0, seat=0, attempt=1), is_task_over=False)
    tracker.ended(an_answer(0, 0, seat=1, attempt=1), is_task_over=True)
    assert tracker.is_complete(0)


def test_a_task_that_ordered_fewer_seats_than_a_game_has_is_asked_again_with_all() -> None:
    """As tasks did before seats were recorded: nobody will ever hear of the others."""
    tracker = a_tracker(num_prompts=2, num_seats=2)
    for index in (0, 1):
        tracker.issued(
            task_for(WantedEvaluation(key=EvaluationKey(0, "greedy"), prompt_index=index, attempt=0))
        )
    tracker.ended(an_answer(0, 0), is_task_over=True)
    tracker.start(0)
    assert not tracker.is_complete(0)
    assert take_all(tracker) == [("greedy", 0, 0)]
    tracker.ended(an_answer(1, 0), is_task_over=True)
    assert take_all(tracker) == [("greedy", 0, 1)]
    for index in (0, 1):
        for seat in (0, 1):
            assert not tracker.is_complete(0)
            tracker.ended(an_answer(index, 0, seat=seat, attempt=1), is_task_over=seat == 1)
    assert tracker.is_complete(0)


def test_a_game_that_is_answered_by_a_seat_of_an_earlier_task_is_not_asked_again() -> None:
    tracker = a_tracker(num_prompts=1, num_seats=2, max_attempts=5)
    tracker.start(0)
    take_all(tracker)
    tracker.ended(an_answer(0, 0, seat=0, status=Status.FAILED), is_task_over=False)
    take_all(tracker)
    tracker.ended(an_answer(0, 0, seat=0, attempt=1), is_task_over=False)
    tracker.ended(an_answer(0, 0, seat=1, attempt=1, status=Status.FAILED), is_task_over=True)
    assert first_wanted(tracker) is not None
    tracker.ended(an_answer(0, 0, seat=1), is_task_over=True)
    assert first_wanted(tracker) is None
    assert tracker.is_complete(0)


def test_a_game_whose_every_seat_fails_uses_up_one_attempt() -> None:
    tracker = a_tracker(num_prompts=1, num_seats=2, max_attempts=2)
    tracker.start(0)
    for attempt in range(2):
        assert take_all(tracker) == [("greedy", 0, 0)]
        for seat in (0, 1):
            failed = an_answer(0, 0, seat=seat, attempt=attempt, status=Status.FAILED)
            tracker.ended(failed, is_task_over=seat == 1)
    assert first_wanted(tracker) is None
    assert tracker.is_complete(0)


@pytest.mark.parametrize("seats_before", [(), (0,), (0, 1)])
def test_a_tracker_that_is_restored_asks_as_the_one_before(seats_before: tuple[int, ...]) -> None:
    tracker, other = (a_tracker(num_prompts=2, num_seats=2) for _ in range(2))
    tracker.start(0)
    take_all(tracker)
    for seat in seats_before:
        tracker.ended(an_answer(0, 0, seat=seat), is_task_over=seat == 1)
    other.restore(json.loads(json.dumps(tracker.to_plain())))
    other.start(0)
    for seat in {0, 1} - set(seats_before):
        assert not other.is_complete(0)
        other.ended(an_answer(0, 0, seat=seat), is_task_over=seat == 1)
    for seat in (0, 1):
        assert not other.is_complete(0)
        other.ended(an_answer(1, 0, seat=seat), is_task_over=seat == 1)
    assert other.is_complete(0)


def test_what_a_tracker_that_knew_no_seats_wrote_is_not_taken() -> None:
    with pytest.raises(TypeError):
        a_tracker().restore([[0, "greedy", [0], [[0, 1]], []]])


def test_what_one_worker_was_too_late_for_is_asked_again() -> None:
    tracker = a_tracker(num_prompts=1)
    tracker.start(0)
    take_all(tracker)
    tracker.ended(an_answer(0, 0, status=Status.EXPIRED, cancel_reason="version_gone"), is_task_over=True)
    again = first_wanted(tracker)
    assert again is not None
    assert again.attempt == 1


def test_an_overtaken_version_is_given_up_with_its_open_tasks() -> None:
    tracker = a_tracker()
    tracker.start(0)
    wanted = first_wanted(tracker)
    assert wanted is not None
    tracker.take(wanted)
    tracker.issued(task_for(wanted))
    assert tracker.release(wanted.key) == ["1.0-0"]
    assert first_wanted(tracker) is None
    assert tracker.is_complete(0)


def test_what_the_log_already_answers_is_not_asked_again() -> None:
    tracker = a_tracker()
    answered = a_task(0, kind=Kind.EVALUATION, evaluation="greedy", pinned_version=0, task_id="1.0-0")
    tracker.issued(answered)
    tracker.ended(an_answer(0, 0), is_task_over=True)
    tracker.start(0)
    assert take_all(tracker) == [("greedy", 0, 1)]


def test_without_held_out_prompts_there_is_nothing_to_evaluate() -> None:
    tracker = a_tracker(num_prompts=0)
    tracker.start(0, is_final=True)
    assert first_wanted(tracker) is None
    assert tracker.is_complete(0)
