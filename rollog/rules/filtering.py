"""Which complete groups are not worth a place in a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.config import GroupConfig

zero_signal = "zero_signal"
mean_out_of_bounds = "mean_out_of_bounds"
smallest_difference = 1e-9


def filter_reason(rewards: Sequence[float], groups: GroupConfig) -> str | None:
    """Why a complete group with these rewards is filtered, or None if it is trained.

    A group whose rewards are all equal has zero advantage everywhere, hence no gradient.
    """
    if groups.filter_zero_signal and max(rewards) - min(rewards) < smallest_difference:
        return zero_signal
    if groups.reward_mean_bounds is not None:
        low, high = groups.reward_mean_bounds
        if not low <= sum(rewards) / len(rewards) <= high:
            return mean_out_of_bounds
    return None
