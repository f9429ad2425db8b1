"""When a run stands still, and how that is said."""

from __future__ import annotations

import pytest

from rollog.rules.standing_still import (
    Pace,
    Teller,
    Told,
    absent_role,
    absent_workers,
    acts_itself,
    allowed_seconds,
    words_of,
)
from schemas import RoleStatus, RunRole


@pytest.mark.parametrize(
    ("distances", "allowed"),
    [((), 60.0), ((1.0,), 10.0), ((30.0, 20.0, 40.0), 120.0), ((1000.0,) * 5 + (5.0,) * 8, 20.0)],
)
def test_a_step_may_take_a_few_times_the_usual_and_never_less_than_ten_seconds(
    distances: tuple[float, ...], allowed: float
) -> None:
    assert allowed_seconds(distances) == allowed


def test_before_the_usual_is_known_a_minute_is_allowed() -> None:
    pace = Pace(100.0)
    assert (pace.still_seconds(160.0), pace.still_seconds(161.0)) == (0.0, 61.0)
    pace.step(170.0)  # the way to the first one holds starts and restores
    assert pace.usual_seconds is None
    assert pace.still_seconds(230.0) == 0.0


def test_the_usual_is_the_median_so_that_one_long_wait_does_not_hide_the_next() -> None:
    pace = Pace(0.0)
    for at in (1.0, 3.0, 5.0, 505.0, 507.0):
        pace.step(at)
    assert pace.usual_seconds == 2.0
    assert pace.still_seconds(517.0) == 0.0
    assert pace.still_seconds(518.0) == 11.0


def test_distances_may_come_from_another_clock_than_the_waiting() -> None:
    pace = Pace(0.0)
    for seconds in (7.0, 20.0, 20.0):
        pace.step(5.0, seconds)
    assert pace.usual_seconds == 20.0
    assert pace.still_seconds(86.0) == 81.0


def test_at_the_end_nothing_stands_still() -> None:
    pace = Pace(0.0)
    pace.ends(10.0)
    assert pace.still_seconds(1000.0) == 0.0


def test_it_is_said_as_it_begins_then_every_minute_and_once_when_it_is_over() -> None:
    teller = Teller()
    said = {now: teller.due(10 <= now < 135, float(now)) for now in range(200)}
    assert {now: told for now, told in said.items() if told is not None} == {
        10: Told.STANDS_STILL,
        70: Told.STANDS_STILL,
        130: Told.STANDS_STILL,
        135: Told.GOES_ON,
    }


def test_who_is_not_there_is_named_with_the_command_that_starts_it() -> None:
    assert absent_role(RunRole.TRAINER, 20.0, was_heard=True).sentence.startswith("no trainer since 20 s; ")
    assert "`rollog train`" in absent_role(RunRole.TRAINER, 20.0, was_heard=True).remedy
    assert (
        "no dispatcher was heard in 61 s" in absent_role(RunRole.DISPATCHER, 61.0, was_heard=False).sentence
    )
    assert "`rollog dispatch`" in absent_role(RunRole.DISPATCHER, 61.0, was_heard=False).remedy
    assert absent_workers(31.0).sentence.startswith("no worker since 31 s; ")
    assert "`rollog rollout`" in absent_workers(31.0).remedy


def test_words_about_an_earlier_step_do_not_count() -> None:
    status = RoleStatus(
        role=RunRole.TRAINER, role_id="t", version=3, waits_on="trainer", waiting_for="computes version 4"
    )
    assert words_of(status, 3) == "computes version 4"
    assert acts_itself(status, 3)
    assert words_of(status, 4) == ""
    assert not acts_itself(status, 4)
    assert not acts_itself(None, 3)
