"""The dispatcher's tracker of groups: what is issued, and what is issued again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import LedgerBuilder, a_header, a_task, freshness_config, groups_config

from producers.dispatcher.group_tracker import GroupTracker
from schemas import CancelReason, ClosedGroup, Disposition, IssueReason, Status
from trainer.buffer.sample_buffer import SampleBuffer
from trainer.buffer.verdicts import verdict_of


def a_tracker(ledger: LedgerBuilder, *, num_steps: int = 100, **changes: Any) -> GroupTracker:
    freshness = freshness_config(**changes.pop("freshness", {}))
    return GroupTracker(ledger.state, groups_config(**changes), freshness, num_steps)


def issue_group(tracker: GroupTracker, group: int, size: int = 2) -> None:
    for replica in range(size):
        tracker.issued(a_task(group, replica))


def wanted(tracker: GroupTracker) -> list[tuple[int, int, int, IssueReason]]:
    return [
        (found.group_id, found.replica, found.attempt, found.reason)
        for group in tracker.take_changed()
        for found in tracker.wanted(group)
    ]


def failed_header(group: int, replica: int, offset: int, status: Status = Status.FAILED) -> Any:
    return a_header(
        group, replica, offset=offset, status=status, first_version=None, segments=(), reward=None
    )


def test_groups_are_admitted_up_to_the_bound_and_again_when_the_ledger_closes_some() -> None:
    ledger = LedgerBuilder(alpha=1.0)
    tracker = a_tracker(ledger)
    while tracker.may_open():
        issue_group(tracker, tracker.next_group_id)
    assert tracker.num_open == 4
    tracker.judged(ledger.step([], [ClosedGroup(group_id=0, outcome=Disposition.TRAINED)]))
    assert tracker.may_open()


def test_no_more_groups_are_opened_than_the_run_still_needs() -> None:
    tracker = a_tracker(LedgerBuilder(alpha=4.0), num_steps=1)
    while tracker.may_open():
        issue_group(tracker, tracker.next_group_id)
    assert tracker.num_open == 2


def test_how_many_steps_the_run_still_makes_is_read_in_the_ledger() -> None:
    ledger = LedgerBuilder(alpha=4.0)
    tracker = a_tracker(ledger, num_steps=1)
    ledger.amend('{"run.num_steps": 3}')
    while tracker.may_open():
        issue_group(tracker, tracker.next_group_id)
    assert tracker.num_open == 6


def test_samples_that_are_read_before_their_version_are_filtered_early_once_it_is_read() -> None:
    ledger = LedgerBuilder(alpha=1.0)
    tracker = a_tracker(ledger)
    issue_group(tracker, 0)
    for replica in range(2):
        tracker.ended(a_header(0, replica, offset=replica, version=1, reward=1.0))
    tracker.take_changed()
    assert tracker.num_early_filtered == 0

    tracker.judged(ledger.step())
    tracker.take_changed()
    assert tracker.num_early_filtered == 1


@pytest.mark.parametrize(
    ("filters", "members"),
    [
        ({}, {"reward": 1.0}),
        ({"pass_rate_bounds": (0.6, 1.0)}, {}),
        ({"response_tokens_mean_bounds": (0, 8)}, {"num_tokens": 9}),
        ({"max_truncated_share": 0.5}, {"is_truncated": True}),
    ],
)
def test_a_group_that_will_be_filtered_makes_room_at_once_and_wants_nothing(
    filters: dict[str, Any], members: dict[str, Any]
) -> None:
    tracker = a_tracker(LedgerBuilder(alpha=0.0), **filters)
    issue_group(tracker, 0)
    issue_group(tracker, 1)
    assert not tracker.may_open()
    for replica in range(2):
        tracker.ended(a_header(0, replica, offset=replica, **members))
    assert wanted(tracker) == []
    assert tracker.num_early_filtered == 1
    assert tracker.may_open()


filters_of_any_kind = st.fixed_dictionaries(
    {
        "filter_zero_signal": st.booleans(),
        "pass_rate_bounds": st.sampled_from([None, (0.0, 0.4), (0.3, 0.7), (0.5, 1.0)]),
        "response_tokens_mean_bounds": st.sampled_from([None, (0, 3), (2, 5), (4, 8)]),
        "max_truncated_share": st.sampled_from([None, 0.0, 0.4, 0.7]),
    }
)
four_members = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 8), st.booleans()), min_size=4, max_size=4
)


@given(members=four_members, order=st.permutations(range(4)), filters=filters_of_any_kind)
def test_dispatcher_and_trainer_filter_the_same_groups(
    members: list[tuple[float, int, bool]], order: list[int], filters: dict[str, Any]
) -> None:
    groups: dict[str, Any] = {"group_size": 3, "redundant_replicas": 1, **filters}
    ledger = LedgerBuilder()
    tracker = a_tracker(ledger, **groups)
    buffer = SampleBuffer(ledger.state, groups_config(**groups), freshness_config())
    issue_group(tracker, 0, size=4)
    for offset, replica in enumerate(order):
        reward, num_tokens, is_truncated = members[replica]
        header = a_header(
            0, replica, offset=offset, reward=reward, num_tokens=num_tokens, is_truncated=is_truncated
        )
        tracker.ended(header)
        buffer.add(header)
        tracker.take_changed()
        outcomes = {group.outcome for group in buffer.verdicts_for()[1]}
        assert (tracker.num_early_filtered == 1) == (outcomes == {Disposition.FILTERED})


def test_a_failed_attempt_is_issued_again_until_the_limit() -> None:
    tracker = a_tracker(LedgerBuilder(), max_attempts=2)
    issue_group(tracker, 0)
    tracker.ended(failed_header(0, 1, offset=0))
    assert wanted(tracker) == [(0, 1, 1, IssueReason.FAILED)]
    tracker.issued(a_task(0, 1, attempt=1, task_id="1.900"))
    assert wanted(tracker) == []
    tracker.ended(
        a_header(0, 1, offset=1, attempt=1, task_id="1.900", status=Status.FAILED, first_version=None)
    )
    assert wanted(tracker) == []


def test_failures_in_the_ledger_and_failures_not_yet_judged_count_once_each() -> None:
    ledger = LedgerBuilder()
    tracker = a_tracker(ledger, max_attempts=2)
    issue_group(tracker, 0)
    header = failed_header(0, 1, offset=0)
    tracker.ended(header)
    tracker.judged(ledger.verdicts([verdict_of(header, Disposition.FAILED, version=0)]))
    assert wanted(tracker) == [(0, 1, 1, IssueReason.FAILED)]


def test_a_stale_verdict_brings_the_replica_back_with_protection() -> None:
    ledger = LedgerBuilder(alpha=0.0)
    tracker = a_tracker(ledger)
    issue_group(tracker, 0)
    header = a_header(0, 0, offset=0)
    tracker.ended(header)
    assert wanted(tracker) == []
    tracker.judged(ledger.verdicts([verdict_of(header, Disposition.STALE, version=0)]))
    (group,) = tracker.take_changed()
    (again,) = list(tracker.wanted(group))
    assert (again.replica, again.attempt, again.reason) == (0, 1, IssueReason.STALE)
    assert again.protected


def test_redundancy_counts_for_later_attempts_too() -> None:
    ledger = LedgerBuilder(alpha=0.0)
    tracker = a_tracker(ledger, redundant_replicas=1)
    issue_group(tracker, 0, size=3)
    headers = [a_header(0, replica, offset=replica) for replica in (0, 1)]
    for header in headers:
        tracker.ended(header)
    tracker.judged(ledger.verdicts([verdict_of(header, Disposition.STALE, version=0) for header in headers]))
    assert wanted(tracker) == [(0, 0, 1, IssueReason.STALE), (0, 1, 1, IssueReason.STALE)]


def test_a_verdict_read_before_its_sample_is_not_undone_by_the_sample() -> None:
    ledger = LedgerBuilder()
    tracker = a_tracker(ledger)
    issue_group(tracker, 0)
    header = a_header(0, 0, offset=0)
    tracker.judged(ledger.verdicts([verdict_of(header, Disposition.STALE, version=0)]))
    tracker.ended(header)
    assert wanted(tracker) == [(0, 0, 1, IssueReason.STALE)]


def test_a_lost_task_is_issued_again_with_the_next_attempt() -> None:
    tracker = a_tracker(LedgerBuilder())
    issue_group(tracker, 0)
    task = a_task(0, 1)
    tracker.lost(task)
    assert [(replica, attempt) for _, replica, attempt, _ in wanted(tracker)] == [(1, 1)]
    tracker.ended(failed_header(0, 1, offset=0, status=Status.LOST))
    assert [(replica, attempt) for _, replica, attempt, _ in wanted(tracker)] == [(1, 1)]


def test_finished_replicas_are_not_issued_again_while_the_ledger_has_not_judged_them() -> None:
    tracker = a_tracker(LedgerBuilder())
    issue_group(tracker, 0)
    tracker.ended(a_header(0, 0, offset=0))
    assert wanted(tracker) == []


def test_open_tasks_of_closed_and_of_satisfied_groups_are_surplus() -> None:
    ledger = LedgerBuilder()
    tracker = a_tracker(ledger, redundant_replicas=1)
    issue_group(tracker, 0, size=3)
    tracker.ended(a_header(0, 0, offset=0, reward=0.0))
    tracker.ended(a_header(0, 1, offset=1, reward=1.0))
    tracker.take_changed()
    assert tracker.surplus_tasks(0) == ["1.2"]
    surplus = tracker.judged(ledger.step([], [ClosedGroup(group_id=0, outcome=Disposition.TRAINED)]))
    assert surplus == ["1.2"]
    assert tracker.all_closed()


def test_replicas_never_issued_are_wanted_first_time() -> None:
    tracker = a_tracker(LedgerBuilder())
    tracker.issued(a_task(0, 0))
    assert wanted(tracker) == [(0, 1, 0, IssueReason.FIRST)]


def test_a_sample_of_a_group_never_issued_opens_nothing() -> None:
    tracker = a_tracker(LedgerBuilder())
    tracker.ended(a_header(77, 0, offset=0))
    assert tracker.num_open == 0
    assert wanted(tracker) == []


def test_under_drop_a_stale_replica_does_not_come_back() -> None:
    ledger = LedgerBuilder(alpha=0.0)
    tracker = a_tracker(ledger, freshness={"action": "drop"})
    issue_group(tracker, 0)
    header = a_header(0, 0, offset=0)
    tracker.ended(header)
    tracker.judged(ledger.verdicts([verdict_of(header, Disposition.STALE, version=0)]))
    assert wanted(tracker) == []


def test_attempts_know_how_many_open_groups_are_ahead() -> None:
    tracker = a_tracker(LedgerBuilder())
    for group in range(3):
        issue_group(tracker, group)
    tracker.ended(failed_header(2, 0, offset=0))
    (again,) = [found for group in tracker.take_changed() for found in tracker.wanted(group)]
    assert again.num_groups_ahead == 2
    assert next(iter(tracker.first_attempts(3))).num_groups_ahead == 3


def test_a_group_that_closed_meanwhile_lacks_nothing() -> None:
    ledger = LedgerBuilder()
    tracker = a_tracker(ledger)
    tracker.issued(a_task(0, 0))
    assert tracker.take_changed() == [0]
    tracker.judged(ledger.step([], [ClosedGroup(group_id=0, outcome=Disposition.TRAINED)]))
    assert list(tracker.wanted(0)) == []


def test_what_is_over_a_constant_alpha_cannot_be_fresh() -> None:
    ledger = LedgerBuilder(alpha=1.0)
    tracker = a_tracker(ledger)
    issue_group(tracker, 0)
    for _ in range(2):
        ledger.step()
    assert tracker.cannot_be_fresh(0, first_version=0)
    assert not tracker.cannot_be_fresh(0, first_version=1)


def test_what_an_amendment_makes_fresh_again_is_not_hopeless() -> None:
    ledger = LedgerBuilder(alpha=0.0)
    tracker = a_tracker(ledger)
    issue_group(tracker, 0)
    ledger.step()
    assert tracker.cannot_be_fresh(0, first_version=0)
    ledger.amend('{"freshness.alpha": [[0, 0.0], [2, 2.0]]}')
    assert not tracker.cannot_be_fresh(0, first_version=0)


def test_at_a_barrier_a_rollout_cannot_be_fresh_only_if_training_waits_for_its_group() -> None:
    ledger = LedgerBuilder(alpha=2.0)
    tracker = a_tracker(ledger, freshness={"alpha": 2.0, "barrier_every_steps": 3})
    issue_group(tracker, 0)
    issue_group(tracker, 1)
    ledger.step()
    ledger.step(alpha=0.0)
    assert not tracker.cannot_be_fresh(0, first_version=1)
    stale = verdict_of(a_header(0, 0, offset=0, version=1), Disposition.STALE, version=2)
    tracker.judged(ledger.verdicts([stale]))
    assert tracker.cannot_be_fresh(0, first_version=1)
    assert not tracker.cannot_be_fresh(0, first_version=2)
    assert not tracker.cannot_be_fresh(1, first_version=1)


@pytest.mark.parametrize("action", ["regenerate", "drop"])
def test_a_rollout_cancelled_for_staleness_counts_as_stale_before_its_verdict(action: str) -> None:
    tracker = a_tracker(LedgerBuilder(), freshness={"action": action})
    issue_group(tracker, 0)
    tracker.ended(
        a_header(
            0,
            0,
            offset=0,
            status=Status.CANCELLED,
            cancel_reason=CancelReason.STALE.value,
            first_version=None,
            segments=(),
            reward=None,
        )
    )
    again = [(0, 0, 1, IssueReason.STALE)]
    assert wanted(tracker) == (again if action == "regenerate" else [])
