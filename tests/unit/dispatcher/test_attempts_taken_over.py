"""Which attempts a task may take over: what was lost goes on, what ended for a reason of its own begins anew."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import LedgerBuilder, a_header, a_task, freshness_config, groups_config

from producers.dispatcher.group_progress import GroupProgress
from producers.dispatcher.group_tracker import GroupTracker, Wanted
from producers.dispatcher.tasks import IssuePosition
from producers.dispatcher.turn_positions import TurnPositions
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicPartition, TopicSpec
from rollog.kernel.errors import BrokerTimeout
from schemas import Status


def a_tracker(ledger: LedgerBuilder) -> GroupTracker:
    return GroupTracker(
        ledger.state,
        groups_config(group_size=1, filter_zero_signal=False, max_attempts=9, max_lost=9),
        freshness_config(),
        100,
    )


def ended(attempt: int, status: Status, **changes: Any) -> Any:
    return a_header(
        0,
        0,
        offset=attempt,
        attempt=attempt,
        task_id=f"1.{attempt}",
        status=status,
        first_version=None,
        segments=(),
        reward=None,
        **changes,
    )


def next_attempt(tracker: GroupTracker) -> Wanted:
    (wanted,) = tracker.wanted(0)
    return wanted


@pytest.mark.parametrize(
    ("status", "changes", "resumed"),
    [
        (Status.LOST, {}, 0),
        (Status.EXPIRED, {"cancel_reason": "revoked"}, 0),
        (Status.CANCELLED, {"cancel_reason": "leaving"}, 0),
        (Status.CANCELLED, {"cancel_reason": "surplus"}, None),
        (Status.CANCELLED, {"cancel_reason": "stale"}, None),
        (Status.FAILED, {}, None),
        (Status.LOST, {"defect": "forged"}, None),
    ],
)
def test_only_what_ended_because_of_its_worker_is_taken_up_again(
    status: Status, changes: dict[str, Any], resumed: int | None
) -> None:
    tracker = a_tracker(LedgerBuilder())
    tracker.issued(a_task(0, 0))
    tracker.ended(ended(0, status, **changes))
    assert next_attempt(tracker).resume_attempt == resumed


def test_the_earliest_attempt_is_the_one_after_the_last_that_ended_by_itself() -> None:
    tracker = a_tracker(LedgerBuilder())
    for attempt, status in enumerate((Status.LOST, Status.FAILED, Status.LOST, Status.LOST)):
        tracker.issued(a_task(0, 0, task_id=f"1.{attempt}", attempt=attempt))
        tracker.ended(ended(attempt, status))
    assert next_attempt(tracker).resume_attempt == 2


def test_a_zombie_that_fails_later_takes_nothing_from_its_successors() -> None:
    tracker = a_tracker(LedgerBuilder())
    tracker.issued(a_task(0, 0))
    tracker.ended(ended(0, Status.LOST))
    tracker.issued(a_task(0, 0, task_id="1.1", attempt=1))
    tracker.ended(ended(0, Status.FAILED))
    tracker.ended(ended(1, Status.LOST))
    assert next_attempt(tracker).resume_attempt == 1


def test_what_can_only_end_stale_is_not_taken_up() -> None:
    ledger = LedgerBuilder(alpha=1.0)
    tracker = a_tracker(ledger)
    tracker.issued(a_task(0, 0))
    tracker.began(a_task(0, 0), 0)
    tracker.ended(ended(0, Status.LOST))
    assert next_attempt(tracker).resume_attempt == 0
    for _ in range(3):
        tracker.judged(ledger.step())
    assert next_attempt(tracker).resume_attempt is None


def test_turns_begin_where_the_first_task_said() -> None:
    tracker = a_tracker(LedgerBuilder())
    tracker.issued(a_task(0, 0, turns_position=40))
    tracker.ended(ended(0, Status.LOST))
    wanted = next_attempt(tracker)
    position = IssuePosition(
        version=0, alpha=1.0, ledger_position=0, samples_positions=(), turns_positions=(70, 80)
    )
    assert position.turns_position(wanted, 1) == 40
    first = Wanted(
        group_id=1, replica=0, attempt=0, reason=wanted.reason, num_groups_ahead=0, protected=False
    )
    assert position.turns_position(first, 1) == 80


def test_what_is_known_of_attempts_survives_a_snapshot() -> None:
    progress = GroupProgress(
        last_attempt={0: 3}, turns_position={0: 40}, resume_floor={0: 2}, oldest_version={0: 5}
    )
    read = GroupProgress.from_plain(progress.to_plain())
    assert read == progress
    assert read.resume_attempt(0) == 2


def test_ends_are_fetched_now_and_then_and_stay_while_the_broker_is_silent() -> None:
    broker = MemoryBroker()
    with broker.admin() as admin:
        admin.create_topics([TopicSpec(name="turns", num_partitions=2, replication_factor=1, config={})])
    with broker.producer(client_id="w") as producer, broker.consumer(client_id="d") as consumer:
        positions = TurnPositions(consumer, "turns", 2)
        assert positions.positions == (0, 0)
        producer.send("turns", 1, b"x").offset(1.0)
        positions.refresh(10.0)
        assert positions.positions == (0, 1)
        producer.send("turns", 1, b"x").offset(1.0)
        positions.refresh(12.0)
        assert positions.positions == (0, 1)
        positions.refresh(20.0)
        assert positions.positions == (0, 2)

        class Silent:
            def end_offsets(self, _: list[TopicPartition]) -> dict[TopicPartition, int]:
                raise BrokerTimeout("silent")

        positions._consumer = Silent()  # type: ignore[assignment]  # the one call that is made
        positions.refresh(30.0)
        assert positions.positions == (0, 2)


def test_a_run_that_keeps_no_turns_asks_for_none() -> None:
    with MemoryBroker().consumer(client_id="d") as consumer:
        positions = TurnPositions(consumer, "turns", 0)
        positions.refresh(10.0)
        assert positions.positions == ()
