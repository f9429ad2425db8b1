"""The reasons that verdicts give."""

from __future__ import annotations

unknown_weights = "unknown_weights"
over_lag_bound = "lag"
over_lag_quota = "quota"
aged_surplus = "aged_surplus"
unprotected_reasons = frozenset({over_lag_quota, aged_surplus})
"""Members of groups that were complete and not needed: going stale does not protect such a group."""

zero_signal = "zero_signal"
mean_out_of_bounds = "mean_out_of_bounds"
too_hard = "too_hard"
too_easy = "too_easy"
too_short = "too_short"
too_long = "too_long"
truncated = "truncated"
"""The last seven say which filter a complete group did not pass."""
