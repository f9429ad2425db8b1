"""When heartbeats are due, with the clock driven by hand."""

from __future__ import annotations

from producers.rollout.pace import HeartbeatPace


def test_the_first_heartbeat_is_due_and_then_one_at_every_interval() -> None:
    pace = HeartbeatPace(every_seconds=0.5, capacity=8)
    assert pace.is_due(10.0, 0)
    pace.told(10.0, 0)
    assert not pace.is_due(10.49, 0)
    assert pace.is_due(10.5, 0)


def test_a_change_that_may_leave_slots_empty_is_told_soon_but_not_at_once() -> None:
    pace = HeartbeatPace(every_seconds=0.5, capacity=8)
    pace.told(10.0, 3)
    assert not pace.is_due(10.05, 8)
    assert pace.is_due(10.11, 4)
    assert pace.is_due(10.11, 2)


def test_a_change_of_few_of_many_slots_waits() -> None:
    pace = HeartbeatPace(every_seconds=0.5, capacity=64)
    pace.told(10.0, 10)
    assert not pace.is_due(10.4, 17)
    assert pace.is_due(10.4, 18)


def test_an_interval_shorter_than_what_changes_wait_for_stays_the_interval() -> None:
    pace = HeartbeatPace(every_seconds=0.05, capacity=8)
    pace.told(10.0, 0)
    assert pace.is_due(10.05, 0)
