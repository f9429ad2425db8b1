"""The sample buffer, driven by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.builders import LedgerBuilder, a_header, a_segment, freshness_config, groups_config

from schemas import CancelReason, Disposition, Status
from trainer.buffer.sample_buffer import SampleBuffer

if TYPE_CHECKING:
    from rollog.rules.headers import SampleHeader
    from schemas import LedgerRecord


def a_buffer(
    ledger: LedgerBuilder, *, freshness: dict[str, Any] | None = None, **groups: Any
) -> SampleBuffer:
    return SampleBuffer(ledger.state, groups_config(**groups), freshness_config(**(freshness or {})))


def add_group(buffer: SampleBuffer, group: int, *, offset: int = 0, version: int = 0, size: int = 2) -> None:
    for replica in range(size):
        buffer.add(a_header(group, replica, offset=offset + replica, version=version))


def dispositions(record: LedgerRecord) -> dict[tuple[int, int, int], Disposition]:
    return {
        (verdict.group_id, verdict.replica, verdict.offset): verdict.disposition
        for verdict in record.verdicts
    }


def only_verdict(buffer: SampleBuffer, header: SampleHeader) -> Disposition:
    buffer.add(header)
    (verdict,) = buffer.verdicts_for()[0]
    return verdict.disposition


def test_a_batch_is_b_complete_groups_in_order_of_group() -> None:
    buffer = a_buffer(LedgerBuilder())
    add_group(buffer, 1)
    assert buffer.next_batch(0.0) is None
    add_group(buffer, 0)
    batch = buffer.next_batch(0.0)
    assert batch is not None
    assert [group.group_id for group in batch] == [0, 1]
    assert [header.replica for header in batch[0].members] == [0, 1]


def test_groups_with_larger_lag_come_first() -> None:
    ledger = LedgerBuilder()
    ledger.step()
    buffer = a_buffer(ledger, groups_per_batch=1)
    add_group(buffer, 0, version=1)
    add_group(buffer, 1, version=0)
    batch = buffer.next_batch(0.0)
    assert batch is not None
    assert (batch[0].group_id, batch[0].lag) == (1, 1)


def test_a_trained_batch_is_published_once_and_forgotten() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger)
    add_group(buffer, 0)
    add_group(buffer, 1)
    record = ledger.publish(buffer, buffer.next_batch(0.0) or ())
    assert set(dispositions(record).values()) == {Disposition.TRAINED}
    assert [group.group_id for group in record.closed_groups] == [0, 1]
    assert not buffer.undisposed
    assert not buffer.has_pending


def test_a_group_without_signal_is_filtered_and_closed() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger)
    for replica in range(2):
        buffer.add(a_header(0, replica, offset=replica, reward=1.0))
    assert buffer.has_pending
    record = ledger.publish(buffer)
    assert set(dispositions(record).values()) == {Disposition.FILTERED}
    assert record.closed_groups[0].outcome is Disposition.FILTERED


def test_a_group_whose_mean_reward_is_out_of_bounds_is_filtered() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, reward_mean_bounds=(0.6, 0.9))
    add_group(buffer, 0)
    record = ledger.publish(buffer)
    assert {verdict.reason for verdict in record.verdicts} == {"mean_out_of_bounds"}


def test_endings_other_than_finished_are_judged_at_once() -> None:
    for status, expected in (
        (Status.FAILED, Disposition.FAILED),
        (Status.LOST, Disposition.LOST),
        (Status.CANCELLED, Disposition.CANCELLED),
        (Status.EXPIRED, Disposition.CANCELLED),
    ):
        header = a_header(offset=0, status=status, first_version=None, segments=(), reward=None)
        assert only_verdict(a_buffer(LedgerBuilder()), header) is expected


def test_a_rollout_cancelled_for_staleness_is_stale() -> None:
    header = a_header(offset=0, status=Status.CANCELLED, cancel_reason=CancelReason.STALE.value)
    assert only_verdict(a_buffer(LedgerBuilder()), header) is Disposition.STALE


def test_a_defective_record_is_dead_whatever_else_it_says() -> None:
    header = a_header(offset=0, defect="truncated", status=None)
    assert only_verdict(a_buffer(LedgerBuilder()), header) is Disposition.DEAD


def test_a_sample_of_weights_nobody_committed_is_stale() -> None:
    header = a_header(offset=0, segments=(a_segment(7),), first_version=0)
    assert only_verdict(a_buffer(LedgerBuilder()), header) is Disposition.STALE


def test_lag_equal_to_the_bound_is_fresh_and_one_more_is_stale() -> None:
    ledger = LedgerBuilder(alpha=1.0)
    buffer = a_buffer(ledger, groups_per_batch=1)
    add_group(buffer, 0)
    ledger.publish(buffer, buffer.next_batch(0.0) or ())
    buffer.add(a_header(1, 0, offset=0, version=0))
    assert buffer.verdicts_for() == ((), ())
    add_group(buffer, 2, version=1)
    ledger.publish(buffer, buffer.next_batch(0.0) or ())
    assert buffer.has_pending
    assert dispositions(ledger.publish(buffer)) == {(1, 0, 0): Disposition.STALE}


def test_alpha_zero_trains_nothing_but_the_current_version() -> None:
    ledger = LedgerBuilder(alpha=0.0)
    ledger.step()
    buffer = a_buffer(ledger, groups_per_batch=1)
    add_group(buffer, 0, version=0)
    assert buffer.next_batch(0.0) is None
    assert set(dispositions(ledger.publish(buffer)).values()) == {Disposition.STALE}


def test_a_fractional_alpha_admits_only_its_quota_of_the_largest_lag() -> None:
    ledger = LedgerBuilder(alpha=0.5)
    ledger.step()
    buffer = a_buffer(ledger, groups_per_batch=2, freshness={"patience_seconds": 0.0})
    for group in range(3):
        add_group(buffer, group, version=0)
    assert buffer.next_batch(0.0) is None
    record = ledger.publish(buffer)
    assert {verdict.group_id for verdict in record.verdicts} == {1, 2}
    assert {verdict.reason for verdict in record.verdicts} == {"quota"}
    add_group(buffer, 3, version=1)
    batch = buffer.next_batch(0.0)
    assert batch is not None
    assert [(group.group_id, group.lag) for group in batch] == [(0, 1), (3, 0)]


def test_the_lowest_offset_of_a_replica_counts_and_the_spare_is_a_duplicate() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, groups_per_batch=1)
    buffer.add(a_header(0, 0, offset=5, attempt=1))
    buffer.add(a_header(0, 0, offset=2))
    buffer.add(a_header(0, 1, offset=9))
    batch = buffer.next_batch(0.0)
    assert batch is not None
    assert [header.offset for header in batch[0].members] == [2, 9]
    record = ledger.publish(buffer, batch)
    assert dispositions(record)[(0, 0, 5)] is Disposition.DUPLICATE


def test_replicas_beyond_the_first_g_are_redundant_when_the_group_closes() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, groups_per_batch=1, redundant_replicas=1)
    for replica, offset in ((2, 0), (1, 1), (0, 2)):
        buffer.add(a_header(0, replica, offset=offset))
    record = ledger.publish(buffer, buffer.next_batch(0.0) or ())
    assert dispositions(record) == {
        (0, 1, 1): Disposition.TRAINED,
        (0, 2, 0): Disposition.TRAINED,
        (0, 0, 2): Disposition.REDUNDANT,
    }


def test_samples_after_their_group_closed_are_duplicates_or_redundant() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, groups_per_batch=1, redundant_replicas=1)
    add_group(buffer, 0)
    ledger.publish(buffer, buffer.next_batch(0.0) or ())
    buffer.add(a_header(0, 0, offset=10))
    buffer.add(a_header(0, 2, offset=11))
    assert dispositions(ledger.publish(buffer)) == {
        (0, 0, 10): Disposition.DUPLICATE,
        (0, 2, 11): Disposition.REDUNDANT,
    }


def test_a_record_already_disposed_of_is_not_taken_in_again() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, groups_per_batch=1)
    add_group(buffer, 0)
    ledger.publish(buffer, buffer.next_batch(0.0) or ())
    add_group(buffer, 0)
    assert not buffer.undisposed


def test_a_group_closes_short_when_too_few_replicas_have_attempts_left() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, max_attempts=2)
    buffer.add(a_header(0, 0, offset=0))
    for offset in (1, 2):
        assert not buffer.next_batch(0.0)
        buffer.add(a_header(0, 1, offset=offset, status=Status.FAILED, first_version=None, segments=()))
    record = ledger.publish(buffer)
    assert dispositions(record)[(0, 0, 0)] is Disposition.INCOMPLETE
    assert record.closed_groups[0].outcome is Disposition.INCOMPLETE


def test_failures_published_earlier_still_count_towards_closing_short() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, max_attempts=2)
    for offset in (1, 2):
        buffer.add(a_header(0, 1, offset=offset, status=Status.FAILED, first_version=None, segments=()))
        record = ledger.publish(buffer)
    assert record.closed_groups[0].outcome is Disposition.INCOMPLETE


def test_a_replica_with_a_fresh_sample_is_not_exhausted_whatever_failed_before() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, max_attempts=1)
    buffer.add(a_header(0, 0, offset=0))
    buffer.add(a_header(0, 0, offset=1, status=Status.FAILED, first_version=None, segments=()))
    assert ledger.publish(buffer).closed_groups == ()
    buffer.add(a_header(0, 1, offset=2, status=Status.FAILED, first_version=None, segments=()))
    assert ledger.publish(buffer).closed_groups[0].outcome is Disposition.INCOMPLETE


def test_a_redundant_replica_saves_a_group_whose_other_replica_is_exhausted() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, groups_per_batch=1, max_attempts=1, redundant_replicas=1)
    buffer.add(a_header(0, 0, offset=0, reward=0.0))
    buffer.add(a_header(0, 1, offset=1, status=Status.FAILED, first_version=None, segments=()))
    buffer.add(a_header(0, 2, offset=2, reward=1.0))
    batch = buffer.next_batch(0.0)
    assert batch is not None
    assert [header.replica for header in batch[0].members] == [0, 2]


def test_under_drop_a_stale_member_closes_its_group_short() -> None:
    ledger = LedgerBuilder(alpha=0.0)
    ledger.step()
    buffer = a_buffer(ledger, freshness={"action": "drop", "alpha": 0.0})
    buffer.add(a_header(0, 0, offset=0, version=0))
    assert ledger.publish(buffer).closed_groups[0].outcome is Disposition.INCOMPLETE


def test_the_last_batch_is_short_once_every_group_is_closed_or_complete() -> None:
    buffer = a_buffer(LedgerBuilder(), groups_per_batch=4)
    add_group(buffer, 0)
    buffer.add(a_header(1, 0, offset=0))
    assert buffer.next_batch(0.0, last_group_id=1) is None
    buffer.add(a_header(1, 1, offset=1))
    batch = buffer.next_batch(0.0, last_group_id=1)
    assert batch is not None
    assert len(batch) == 2


def test_the_last_batch_can_be_dropped_instead() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, groups_per_batch=4)
    add_group(buffer, 0)
    assert buffer.next_batch(0.0, last_group_id=0, train_short=False) is None
    record = ledger.publish(buffer)
    assert {verdict.reason for verdict in record.verdicts} == {"last_batch"}
    assert record.closed_groups[0].outcome is Disposition.INCOMPLETE


def test_closing_the_run_leaves_nothing_without_a_verdict() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger)
    add_group(buffer, 0)
    buffer.add(a_header(1, 0, offset=0))
    buffer.close_all()
    record = ledger.publish(buffer)
    assert set(dispositions(record).values()) == {Disposition.INCOMPLETE}
    assert not buffer.undisposed


def test_low_water_marks_stop_at_the_first_undisposed_record() -> None:
    buffer = a_buffer(LedgerBuilder())
    buffer.add(a_header(0, 0, offset=3))
    buffer.add(a_header(0, 1, offset=4, status=Status.FAILED, first_version=None, segments=()))
    buffer.add(a_header(1, 0, offset=7, status=Status.LOST, first_version=None, segments=()))
    verdicts, _ = buffer.verdicts_for()
    assert buffer.low_water_marks((5, 8, 2, 0), verdicts) == (3, 8, 2, 0)


def a_buffer_with_a_protected_group(ledger: LedgerBuilder, max_wait_seconds: float = 10.0) -> SampleBuffer:
    """Group 0 has a published stale sample at version 1; groups 1 and 2 are complete."""
    buffer = a_buffer(
        ledger, groups_per_batch=1, freshness={"alpha": 0.0, "patience_seconds": max_wait_seconds}
    )
    buffer.add(a_header(0, 0, offset=0, version=0))
    ledger.publish(buffer)
    add_group(buffer, 1, version=ledger.state.version)
    return buffer


def test_a_protected_group_holds_up_the_next_version_until_it_is_complete() -> None:
    ledger = LedgerBuilder(alpha=0.0)
    ledger.step()
    buffer = a_buffer_with_a_protected_group(ledger)
    assert buffer.next_batch(0.0) is None
    add_group(buffer, 0, offset=10, version=1)
    batch = buffer.next_batch(1.0)
    assert batch is not None
    assert batch[0].group_id == 0
    assert ledger.publish(buffer, batch).closed_groups[0].protected_waits == 1


def test_the_longest_wait_ends_the_hold_of_a_protected_group() -> None:
    ledger = LedgerBuilder(alpha=0.0)
    ledger.step()
    buffer = a_buffer_with_a_protected_group(ledger, max_wait_seconds=5.0)
    assert buffer.next_batch(0.0) is None
    assert buffer.next_batch(4.9) is None
    batch = buffer.next_batch(5.0)
    assert batch is not None
    assert batch[0].group_id == 1


def test_alpha_one_lets_one_version_pass_a_protected_group() -> None:
    ledger = LedgerBuilder(alpha=1.0)
    ledger.step()
    ledger.step()
    buffer = a_buffer(ledger, groups_per_batch=1, freshness={"alpha": 1.0})
    buffer.add(a_header(0, 0, offset=0, version=0))
    ledger.publish(buffer)
    add_group(buffer, 1, version=2)
    batch = buffer.next_batch(0.0)
    assert batch is not None
    ledger.publish(buffer, batch)
    add_group(buffer, 2, version=3)
    assert buffer.next_batch(0.0) is None


def test_when_alpha_falls_what_is_over_the_new_bound_turns_stale() -> None:
    ledger = LedgerBuilder(alpha=1.0)
    buffer = a_buffer(ledger, groups_per_batch=1)
    add_group(buffer, 0)
    add_group(buffer, 1)
    batch = buffer.next_batch(0.0) or ()
    verdicts, closed = buffer.verdicts_for(batch)
    buffer.committed(ledger.step(verdicts, closed, alpha=0.0))
    assert set(dispositions(ledger.publish(buffer)).values()) == {Disposition.STALE}


def test_a_complete_group_that_ages_is_not_protected() -> None:
    ledger = LedgerBuilder(alpha=0.0)
    buffer = a_buffer(ledger, groups_per_batch=1, freshness={"alpha": 0.0})
    add_group(buffer, 0)
    add_group(buffer, 1)
    ledger.publish(buffer, buffer.next_batch(0.0) or ())
    record = ledger.publish(buffer)
    assert {(verdict.group_id, verdict.reason) for verdict in record.verdicts} == {(1, "aged_surplus")}
    add_group(buffer, 2, version=1)
    batch = buffer.next_batch(0.0)
    assert batch is not None
    assert batch[0].group_id == 2


@pytest.mark.parametrize("num_redundant", [1, 2])
def test_a_redundant_group_is_protected_only_when_as_many_later_ones_have_closed(num_redundant: int) -> None:
    ledger = LedgerBuilder(alpha=0.0)
    buffer = a_buffer(ledger, groups_per_batch=1, redundant_groups=num_redundant, freshness={"alpha": 0.0})
    reasons = []
    while True:
        version = ledger.state.version
        buffer.add(a_header(0, 0, offset=version, version=version))  # a rollout that is never there in time
        add_group(buffer, version + 1, offset=10 * version + 10, version=version)
        batch = buffer.next_batch(0.0)
        if batch is None:
            break
        ledger.publish(buffer, batch)
        reasons += [verdict.reason for verdict in ledger.publish(buffer).verdicts]
    assert reasons == ["redundant_group"] * (num_redundant - 1) + ["lag"]
    assert ledger.state.stale_versions[0] == [(0, num_redundant)]


def test_a_rollout_of_a_redundant_group_that_was_cancelled_for_staleness_does_not_protect_it() -> None:
    ledger = LedgerBuilder(alpha=0.0)
    buffer = a_buffer(ledger, redundant_groups=1)
    buffer.add(a_header(0, 0, offset=0, status=Status.CANCELLED, cancel_reason=CancelReason.STALE.value))
    (verdict,) = ledger.publish(buffer).verdicts
    assert (verdict.disposition, verdict.reason) == (Disposition.STALE, "redundant_group")
    assert not ledger.state.stale_versions


def test_the_freshest_groups_may_go_first() -> None:
    ledger = LedgerBuilder(alpha=1.0)
    ledger.step()
    buffer = a_buffer(ledger, groups_per_batch=1, batch_order="freshest")
    add_group(buffer, 0, version=0)
    add_group(buffer, 1, offset=10, version=1)
    batch = buffer.next_batch(0.0)
    assert batch is not None
    assert batch[0].group_id == 1


def test_a_group_that_stays_incomplete_for_too_long_is_closed() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, groups_per_batch=2, timeout_seconds=5.0)
    buffer.add(a_header(0, 0, offset=0))
    add_group(buffer, 1, offset=10)
    assert buffer.next_batch(100.0) is None
    assert buffer.next_batch(104.9) is None
    assert not buffer.has_pending
    assert buffer.next_batch(105.0) is None
    record = ledger.publish(buffer)
    assert [(group.group_id, group.outcome) for group in record.closed_groups] == [
        (0, Disposition.INCOMPLETE)
    ]
    assert [(verdict.disposition, verdict.reason) for verdict in record.verdicts] == [
        (Disposition.INCOMPLETE, "timed_out")
    ]
    assert buffer.num_ready == 1, "a complete group waits for its batch as long as it must"
    buffer.add(a_header(0, 1, offset=1))
    assert ledger.publish(buffer).verdicts[0].disposition is Disposition.REDUNDANT
