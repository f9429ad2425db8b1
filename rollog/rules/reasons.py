"""Why a sample went stale, as verdicts say it."""

from __future__ import annotations

unknown_weights = "unknown_weights"
over_lag_bound = "lag"
over_lag_quota = "quota"
aged_surplus = "aged_surplus"
unprotected_reasons = frozenset({over_lag_quota, aged_surplus})
"""Members of groups that were complete and not needed: going stale does not protect such a group."""
