"""Samples that wait for their reward, as the dispatcher's tracker sees them: finished, and not judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.builders import LedgerBuilder, a_header, a_task, freshness_config, groups_config

from producers.dispatcher.group_tracker import GroupTracker
from schemas import Disposition, IssueReason
from trainer.buffer.verdicts import verdict_of

if TYPE_CHECKING:
    from rollog.rules.headers import SampleHeader


def a_tracker(ledger: LedgerBuilder, *, max_attempts: int = 3) -> GroupTracker:
    tracker = GroupTracker(ledger.state, groups_config(max_attempts=max_attempts), freshness_config(), 100)
    for replica in range(2):
        tracker.issued(a_task(0, replica))
    return tracker


def waiting(replica: int, offset: int) -> SampleHeader:
    return a_header(0, replica, offset=offset, reward=None, num_turns=1)


def wanted(tracker: GroupTracker) -> list[tuple[int, int, IssueReason]]:
    return [
        (found.replica, found.attempt, found.reason)
        for group in tracker.take_changed()
        for found in tracker.wanted(group)
    ]


def test_a_group_whose_samples_wait_is_open_lacks_nothing_and_is_not_filtered_early() -> None:
    tracker = a_tracker(LedgerBuilder())
    for replica in range(2):
        tracker.ended(waiting(replica, replica))
    assert wanted(tracker) == []
    assert (tracker.num_open, tracker.num_early_filtered) == (1, 0)


def test_a_sample_that_is_given_up_is_issued_again_until_its_attempts_are_used_up() -> None:
    ledger = LedgerBuilder()
    tracker = a_tracker(ledger, max_attempts=1)
    header = waiting(0, 0)
    tracker.ended(header)
    tracker.ended(waiting(1, 1))
    assert wanted(tracker) == []
    tracker.judged(ledger.verdicts([verdict_of(header, Disposition.UNREWARDED, version=0)]))
    assert wanted(tracker) == []

    again = LedgerBuilder()
    tracker = a_tracker(again)
    tracker.ended(header)
    tracker.ended(waiting(1, 1))
    tracker.judged(again.verdicts([verdict_of(header, Disposition.UNREWARDED, version=0)]))
    assert wanted(tracker) == [(0, 1, IssueReason.UNREWARDED)]
