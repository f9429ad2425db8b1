"""What the trainer says it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.waiting import TrainerFacts, cause_of, training


def facts(**changes: Any) -> TrainerFacts:
    values: dict[str, Any] = {"num_ready": 0, "groups_per_batch": 2, "group_size": 4, "holding": {}}
    return TrainerFacts(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "waits_on", "words"),
    [
        (
            {"num_ready": 1, "lacking": ((3, 2), (5, 4)), "num_pending": 6},
            "worker",
            ["1 of 2 groups are complete", "group 3 lacks 2 of 4, group 5 lacks 4 of 4", "6 verdicts"],
        ),
        (
            {"lacking": tuple((group, 1) for group in range(9))},
            "worker",
            ["group 0", "group 2", "and 6 more"],
        ),
        ({}, "dispatcher", ["no other was issued", "dispatcher's log"]),
        (
            {"lacking": ((3, 2),), "in_flight": 7, "in_flight_seconds": 12.3},
            "trainer",
            ["version 7 is being written to the store and committed, for 12 s so far"],
        ),
        (
            {"num_ready": 2, "holding": {7: 12.0}, "lacking": ((7, 1),)},
            "trainer",
            ["protected group(s) 7 (lacks 1 of 4)", "at most 12 s more", "freshness.patience_seconds"],
        ),
        (
            {
                "num_ready": 1,
                "lacking": ((3, 2), (5, 4)),
                "waiting": {3: frozenset({0, 2})},
                "longest_wait_seconds": 75.0,
            },
            "scorer",
            ["2 finished samples wait for a reward, the longest for 75 s", "no reward has come since"],
        ),
        (
            {
                "num_ready": 1,
                "lacking": ((3, 2),),
                "waiting": {3: frozenset({0, 2})},
                "seconds_since_reward": 40.0,
            },
            "scorer",
            ["the last reward came 40 s ago", "topic of rewards", "reward.deadline_seconds"],
        ),
        (
            {"num_ready": 1, "lacking": ((3, 2),), "waiting": {3: frozenset({0})}},
            "worker",
            ["group 3 lacks 2 of 4"],
        ),
        ({"num_unplaced": 3}, "broker", ["3 samples wait", "broker answers"]),
        (
            {
                "num_without_object": 2,
                "store_silence": "s3://w does not answer",
                "closing_reason": "num_steps",
            },
            "trainer",
            ["2 large samples wait, and nothing is judged of them: s3://w does not answer"],
        ),
        (
            {"num_without_object": 2},
            "worker",
            ["does not have the objects of 2 large samples", "broker.payload_wait_seconds"],
        ),
        (
            {"closing_reason": "num_steps", "close_seconds_left": 40.0, "lacking": ((1, 1),)},
            "dispatcher",
            ["training is over", "at most 40 s more", "`rollog dispatch`"],
        ),
        ({"closing_reason": "num_steps", "is_stopped": True}, "broker", ["last samples are being read"]),
    ],
)
def test_each_cause_is_named_with_who_has_to_act(
    changes: dict[str, Any], waits_on: str, words: list[str]
) -> None:
    cause = cause_of(facts(**changes))
    assert cause.waits_on == waits_on
    assert cause.remedy
    for each in words:
        assert each in cause.sentence


def test_a_group_that_held_an_earlier_batch_is_not_blamed_where_groups_are_missing() -> None:
    assert cause_of(facts(num_ready=1, holding={7: 1.0}, lacking=((7, 1),))).waits_on == "worker"


def test_a_long_step_is_told_as_such() -> None:
    assert training(4).what == "the trainer computes version 4"
    assert training(4).waits_on == "trainer"
