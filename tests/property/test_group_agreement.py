"""Dispatcher and trainer see the same group where they have read the same ledger and the same samples."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.builders import (
    LedgerBuilder,
    a_header,
    a_segment,
    a_task,
    freshness_config,
    groups_config,
)

from producers.dispatcher.group_tracker import GroupTracker
from schemas import CancelReason, Disposition, Status
from trainer.buffer.sample_buffer import SampleBuffer

newest = 3

endings: list[dict[str, Any]] = [
    {"status": Status.FAILED},
    {"status": Status.LOST},
    {"status": Status.LOST, "defect": "broken"},
    {"status": Status.CANCELLED, "cancel_reason": CancelReason.STALE.value},
    {"status": Status.EXPIRED},
    {"defect": "broken"},
    {"segments": (a_segment(newest + 1),)},
]
finished = st.fixed_dictionaries(
    {
        "version": st.integers(0, newest),
        "reward": st.sampled_from([0.0, 1.0]),
        "num_tokens": st.integers(0, 8),
        "is_truncated": st.booleans(),
    }
)
arrivals = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(finished, finished, st.sampled_from(endings))),
    min_size=1,
    max_size=10,
)
groups_of_any_kind = st.fixed_dictionaries(
    {
        "group_size": st.integers(2, 3),
        "redundant_replicas": st.integers(0, 1),
        "redundant_groups": st.integers(0, 1),
        "max_attempts": st.integers(1, 3),
        "filter_zero_signal": st.booleans(),
        "pass_rate_bounds": st.sampled_from([None, (0.0, 0.4), (0.5, 1.0)]),
        "response_tokens_mean_bounds": st.sampled_from([None, (2, 5)]),
        "max_truncated_share": st.sampled_from([None, 0.4]),
    }
)


@given(
    arrivals=arrivals,
    groups=groups_of_any_kind,
    alpha=st.sampled_from([0.0, 1.0, 1.5]),
    action=st.sampled_from(["regenerate", "drop"]),
)
def test_both_find_the_same_members_tallies_and_filter_before_and_after_the_verdicts(
    arrivals: list[tuple[int, dict[str, Any]]], groups: dict[str, Any], alpha: float, action: str
) -> None:
    ledger = LedgerBuilder(alpha=alpha)
    for _ in range(newest):
        ledger.step()
    freshness = freshness_config(alpha=alpha, action=action)
    tracker = GroupTracker(ledger.state, groups_config(**groups), freshness, num_steps=100)
    buffer = SampleBuffer(ledger.state, groups_config(**groups), freshness)
    tracker.issued(a_task(0, 0))
    for offset, (replica, changes) in enumerate(arrivals):
        header = a_header(0, replica, offset=offset, **changes)
        tracker.ended(header)
        buffer.add(header)
    assert tracker._facts(0) == buffer._facts(0)

    tracker.take_changed()
    outcomes = {group.outcome for group in buffer.verdicts_for()[1]}
    assert (tracker.num_early_filtered == 1) == (outcomes == {Disposition.FILTERED})
    tracker.judged(ledger.publish(buffer))
    if not outcomes:
        assert tracker._facts(0) == buffer._facts(0)
