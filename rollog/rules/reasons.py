"""The reasons that verdicts give."""

from __future__ import annotations

from schemas import CancelReason

unknown_weights = "unknown_weights"
over_lag_bound = "lag"
over_lag_quota = "quota"
aged_surplus = "aged_surplus"
redundant_group = "redundant_group"
unprotected_reasons = frozenset({over_lag_quota, aged_surplus, redundant_group})
"""Members of groups that were not needed, because they were complete or ordered in excess: going stale does not protect
such a group."""

zero_signal = "zero_signal"
mean_out_of_bounds = "mean_out_of_bounds"
too_hard = "too_hard"
too_easy = "too_easy"
too_short = "too_short"
too_long = "too_long"
truncated = "truncated"
"""This one and the six before it say which filter a complete group did not pass."""

group_closed = "group_closed"
spare = "spare"
closed_short = "short"
timed_out = "timed_out"
last_batch = "last_batch"
run_closed = "run_closed"
cancelled = "cancelled"
untrainable = "untrainable"
"""Training failed on the group, twice with its batch and then alone."""
no_reward = "no_reward"
"""Nobody gave it a reward within the time that it may wait for one."""
other_writer = "other_writer"
"""Trained, and written by one of `groups.other_writers`."""

named_reasons = frozenset(
    {
        *(unknown_weights, over_lag_bound, over_lag_quota, aged_surplus, redundant_group),
        *(zero_signal, mean_out_of_bounds, too_hard, too_easy, too_short, too_long, truncated),
        *(
            group_closed,
            spare,
            closed_short,
            timed_out,
            last_batch,
            run_closed,
            cancelled,
            untrainable,
            no_reward,
            other_writer,
        ),
        *(reason.value for reason in CancelReason),
    }
)
"""All of the above, and why tasks are taken back. A dead sample's verdict says in free words what is wrong with it."""
