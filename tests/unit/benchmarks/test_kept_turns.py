"""What deaths cost in turns is counted from raw records alone."""

from __future__ import annotations

from typing import Any

from benchmarks.chaos.kept_turns import kept_turns


def a_task(attempt: int, resume: int | None = None) -> dict[str, Any]:
    return {
        "task_id": f"1.{attempt}",
        "group_id": 0,
        "replica": 0,
        "attempt": attempt,
        "resume_attempt": resume,
    }


def a_turn(attempt: int, number: int, base: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "task_id": f"1.{attempt}",
        "group_id": 0,
        "replica": 0,
        "attempt": attempt,
        "number": number,
        "base": base,
        "token_ids": bytes([attempt, number, 0, 0]),
    }


def a_sample(attempt: int, *turns: dict[str, Any], resumed_from: str | None = None) -> dict[str, Any]:
    context = bytes([9, 9, 9, 9])
    return {
        "sample_id": f"g0.r0.a{attempt}",
        "task_id": f"1.{attempt}",
        "status": "finished",
        "resumed_from": resumed_from,
        "token_ids": context.join(turn["token_ids"] for turn in turns),
        "loss_mask": [1, 0] * (len(turns) - 1) + [1],
    }


first, second = a_turn(0, 0), a_turn(0, 1)


def test_what_is_served_again_is_not_made_again() -> None:
    own = a_turn(1, 2, {"task_id": "1.0", "numbers": [0, 1]})
    counted = kept_turns([a_task(0), a_task(1, 0)], [first, second, own], [a_sample(1, first, second, own)])
    assert (counted.num_resumed, counted.num_served_again, counted.num_made_again) == (1, 2, 0)
    assert (counted.num_compared, counted.faults) == (3, [])


def test_what_could_be_taken_over_and_was_not_is_made_again() -> None:
    own = a_turn(1, 1, {"task_id": "1.0", "numbers": [0]})
    counted = kept_turns([a_task(0), a_task(1, 0)], [first, second, own], [])
    assert (counted.num_served_again, counted.num_made_again) == (1, 1)
    anew = kept_turns([a_task(0), a_task(1, 0)], [first, second, a_turn(1, 0)], [])
    assert (anew.num_resumed, anew.num_made_again) == (0, 2)


def test_an_attempt_that_may_take_over_nothing_costs_nothing_here() -> None:
    counted = kept_turns([a_task(0), a_task(1)], [first, a_turn(1, 0)], [])
    assert (counted.num_resumed, counted.num_made_again) == (0, 0)


def test_a_sample_that_served_everything_again_is_its_predecessors_chain() -> None:
    sample = a_sample(1, first, second, resumed_from="1.0")
    assert kept_turns([a_task(1, 0)], [first, second], [sample]).faults == []


def test_a_sample_that_is_not_its_turns_is_a_fault() -> None:
    (fault,) = kept_turns([], [first, second], [a_sample(0, first)]).faults
    assert "1 sampled tokens differ from the 2 of its 2 turns" in fault


def test_turns_of_a_session_are_compared_trained_or_not_and_in_forks() -> None:
    other = bytes([7, 7, 0, 0])
    sample = {
        **a_sample(0, first),
        "token_ids": first["token_ids"],
        "loss_mask": [0],
        "forks": [{"token_ids": other + second["token_ids"]}],
        "turns": [
            {"number": 1, "sequence": 1, "start": 1, "end": 2},
            {"number": 0, "sequence": 0, "start": 0, "end": 1},
        ],
    }
    assert kept_turns([], [first, second], [sample]).faults == []
    sample["forks"] = [{"token_ids": other + other}]
    assert len(kept_turns([], [first, second], [sample]).faults) == 1
