"""Rollout durations for a workload of which only the mean and the longest are known."""

from __future__ import annotations

import math
import random
from statistics import NormalDist, fmean

_num_rollouts = 4096
_one_in = 1000
"""The longest rollout is taken to be the longest of this many."""


def lognormal_durations(mean_seconds: float, max_seconds: float, *, seed: int = 0) -> list[float]:
    """Durations in seconds with this mean and this longest, log-normal between, in an order that `seed` fixes.

    The spread is that at which one rollout in a thousand is as long as the longest: with r = longest / mean and z the
    quantile of 1 - 1/1000 of the normal distribution, ln r = z s - s^2 / 2. Beyond r = exp(z^2 / 2), about 118, no
    spread does and s = z is taken. Longer draws are cut off, and the others scaled until the mean is met.
    """
    z = NormalDist().inv_cdf(1 - 1 / _one_in)
    sigma = z - math.sqrt(max(0.0, z * z - 2 * math.log(max_seconds / mean_seconds)))
    normal = NormalDist()
    relative = [
        math.exp(sigma * normal.inv_cdf((number + 0.5) / _num_rollouts)) for number in range(_num_rollouts)
    ]
    durations = _scaled(relative, mean_seconds, max_seconds)
    random.Random(seed).shuffle(durations)  # noqa: S311  # no secret
    return durations


def _scaled(relative: list[float], mean_seconds: float, max_seconds: float) -> list[float]:
    """Multiples of `relative`, cut off at the longest, with the given mean."""
    low, high = 0.0, max_seconds / relative[0]
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        mean = fmean(min(middle * each, max_seconds) for each in relative)
        low, high = (middle, high) if mean < mean_seconds else (low, middle)
    return [min(high * each, max_seconds) for each in relative]
