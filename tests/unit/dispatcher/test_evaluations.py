"""Which held-out prompts still need an answer."""

from __future__ import annotations

from typing import Any

from support.builders import a_sample, a_task

from producers.dispatcher.evaluation_tracker import EvaluationBook, WantedEvaluation
from rollog.settings.generation import EvaluationConfig
from schemas import Kind, RolloutTask, Sample, Status


def a_book(num_prompts: int = 2, **changes: Any) -> EvaluationBook:
    config = EvaluationConfig(**({"every_steps": 5, "num_prompts": 10, "sampled": False} | changes))
    return EvaluationBook(config, num_prompts)


def take_all(book: EvaluationBook) -> list[tuple[str, int, int]]:
    taken = []
    while (wanted := first_wanted(book)) is not None:
        book.take(wanted)
        book.issued(task_for(wanted))
        taken.append((wanted.key.name, wanted.key.version, wanted.prompt_index))
    return taken


def first_wanted(book: EvaluationBook) -> WantedEvaluation | None:
    keys = book.unanswered()
    return book.wanted(keys[0]) if keys else None


def task_for(wanted: WantedEvaluation) -> RolloutTask:
    return a_task(
        wanted.prompt_index,
        kind=Kind.EVALUATION,
        evaluation=wanted.key.name,
        pinned_version=wanted.key.version,
        attempt=wanted.attempt,
        task_id=f"1.{wanted.prompt_index}-{wanted.attempt}",
    )


def an_answer(index: int, version: int, *, attempt: int = 0, **changes: Any) -> Sample:
    return a_sample(
        index,
        kind=Kind.EVALUATION,
        evaluation="greedy",
        pinned_version=version,
        task_id=f"1.{index}-{attempt}",
        **changes,
    )


def test_the_first_version_every_fifth_and_the_last_are_evaluated() -> None:
    book = a_book()
    for version in (0, 1, 5):
        book.start(version)
    assert {version for _, version, _ in take_all(book)} == {0, 5}
    book.start(7, is_final=True)
    assert {version for _, version, _ in take_all(book)} == {7}


def test_the_first_and_the_last_are_also_sampled() -> None:
    book = a_book(sampled=True)
    book.start(0)
    book.start(5)
    assert {(name, version) for name, version, _ in take_all(book)} == {
        ("greedy", 0),
        ("sampled", 0),
        ("greedy", 5),
    }


def test_an_evaluation_is_settled_when_every_prompt_is_answered() -> None:
    book = a_book()
    book.start(0)
    take_all(book)
    book.ended(an_answer(0, 0))
    assert not book.is_settled(0)
    book.ended(an_answer(1, 0))
    assert book.is_settled(0)


def test_a_failed_prompt_is_asked_again_and_given_up_after_its_attempts() -> None:
    book = a_book(num_prompts=1, max_attempts=2)
    book.start(0)
    for attempt in range(2):
        wanted = first_wanted(book)
        assert wanted is not None
        assert wanted.attempt == attempt
        take_all(book)
        book.ended(an_answer(0, 0, attempt=attempt, status=Status.FAILED))
    assert first_wanted(book) is None
    assert book.is_settled(0)


def test_what_one_worker_was_too_late_for_is_asked_again() -> None:
    book = a_book(num_prompts=1)
    book.start(0)
    take_all(book)
    book.ended(an_answer(0, 0, status=Status.EXPIRED, cancel_reason="version_gone"))
    again = first_wanted(book)
    assert again is not None
    assert again.attempt == 1


def test_an_overtaken_version_is_given_up_with_its_open_tasks() -> None:
    book = a_book()
    book.start(0)
    wanted = first_wanted(book)
    assert wanted is not None
    book.take(wanted)
    book.issued(task_for(wanted))
    assert book.give_up(wanted.key) == ["1.0-0"]
    assert first_wanted(book) is None
    assert book.is_settled(0)


def test_what_the_log_already_answers_is_not_asked_again() -> None:
    book = a_book()
    answered = a_task(0, kind=Kind.EVALUATION, evaluation="greedy", pinned_version=0, task_id="1.0-0")
    book.issued(answered)
    book.ended(an_answer(0, 0))
    book.start(0)
    assert take_all(book) == [("greedy", 0, 1)]


def test_without_held_out_prompts_there_is_nothing_to_evaluate() -> None:
    book = a_book(num_prompts=0)
    book.start(0, is_final=True)
    assert first_wanted(book) is None
    assert book.is_settled(0)
