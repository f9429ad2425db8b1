"""When a difference between recorded and recomputed log-probabilities is noise, and when it is not.

A difference is recomputed minus recorded, in nats. Two programs that compute the same model differ in the last bits;
these differences have both signs and no mean, but long tails: measured, the largest of 13,000 in bfloat16 was 30 times
their root mean square. So the rule asks several things, each on both sides of zero:

    token    beyond `token`: counted. Beyond `lone` it makes its sample off by itself.
    sample   off, too, with at least two tokens beyond `token` that are more than a quarter of its tokens
    group    what one worker made under one version: off where the mean of |difference| or |mean of difference| is
             larger than noise can make it, or where other weights explain it better than those that it names

Pure: differences come in as arrays of float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

Differences = npt.NDArray[np.float64]

float32_tolerance = 1e-3
"""Nats. Measured between vLLM and transformers on CPUs: 4.1e-5 at most in 140,000 tokens; other weights: 0.005 and more
on average."""
smallest_bfloat16_noise = 1e-3
"""Root mean square in nats that is assumed where a probe shows less: it may have met only tokens without a choice."""

_least_off_tokens, _off_share = 2, 0.25
_least_group_tokens = 200
_least_compared_tokens = 64
_clearly = 5.0
_times_better = 2.0
_fitting_share = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """How far noise may go, in nats: a token, a lone token, a group's mean of |difference|, a group's |mean|.

    `num_probe_tokens` of each group are compared under the neighbouring versions, too: the nearer noise comes to what a
    step changes, the more it takes to tell two versions apart.
    """

    token: float
    lone: float
    mean_absolute: float
    mean: float
    num_probe_tokens: int

    @classmethod
    def fixed(cls, token: float) -> Tolerances:
        """For noise far below `token`: each token beyond it counts as off."""
        return cls(token=token, lone=token, mean_absolute=token / 10, mean=token / 20, num_probe_tokens=64)

    @classmethod
    def of_noise(cls, rms: float) -> Tolerances:
        """For noise of this root mean square with long tails, as bfloat16 makes it."""
        noise = max(rms, smallest_bfloat16_noise)
        return cls(
            token=10 * noise,
            lone=100 * noise,
            mean_absolute=2 * noise,
            mean=noise / 2,
            num_probe_tokens=512,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How the same tokens compare under the weights they name and under others.

    `own` and `other` are root mean squares of the differences, `other_mean_absolute` and `other_largest` mean and
    largest of |difference| under the others; `advantage` is the mean of own² - other² by its standard error: far above
    0 the others fit better.
    """

    num_tokens: int
    own: float
    other: float
    other_mean_absolute: float
    other_largest: float
    advantage: float

    def is_better(self, tolerances: Tolerances) -> bool:
        """Whether the others explain the recorded values, and the own weights do not."""
        return (
            self.num_tokens >= _least_compared_tokens
            and self.own > tolerances.mean
            and self.own**2 > _times_better * self.other**2
            and self.advantage > _clearly
        )

    def is_told_apart(self, tolerances: Tolerances) -> bool:
        """Whether a label that is wrong would show: the others are no explanation for what the own weights made."""
        return (
            self.other_largest > tolerances.lone
            or self.other_mean_absolute > tolerances.mean_absolute
            or (self.other**2 > _times_better * self.own**2 and self.advantage < -_clearly)
        )


def compare_fit(own: Differences, other: Differences) -> Fit:
    """The same tokens under two versions, in the same order. Both must not be empty."""
    squares = own**2 - other**2
    spread = float(np.std(squares)) / sqrt(len(squares))
    mean = float(np.mean(squares))
    advantage = 0.0 if mean == 0 else mean / spread if spread > 0 else float(np.copysign(np.inf, mean))
    return Fit(
        num_tokens=len(own),
        own=float(np.sqrt(np.mean(own**2))),
        other=float(np.sqrt(np.mean(other**2))),
        other_mean_absolute=float(np.mean(np.abs(other))),
        other_largest=float(np.max(np.abs(other))),
        advantage=advantage,
    )


def num_beyond(differences: Differences, tolerances: Tolerances) -> int:
    """Tokens beyond tolerance; what is not a number is beyond it."""
    return int(np.count_nonzero(~(np.abs(differences) <= tolerances.token)))


def is_sample_off(differences: Differences, tolerances: Tolerances) -> bool:
    """Whether noise cannot have made the differences of one sample."""
    if not np.all(np.abs(differences) <= tolerances.lone):
        return True
    beyond = num_beyond(differences, tolerances)
    return beyond >= _least_off_tokens and beyond > _off_share * len(differences)


def fits(differences: Differences, tolerances: Tolerances) -> bool:
    """Whether other weights, tried on a sample that is off, explain it."""
    within = len(differences) - num_beyond(differences, tolerances)
    return not is_sample_off(differences, tolerances) and within >= _fitting_share * len(differences)


def is_group_off(num_tokens: int, mean: float, mean_absolute: float, tolerances: Tolerances) -> bool:
    """Whether the differences of a group are larger than noise, or lie on one side; of few tokens nothing is said."""
    if num_tokens < _least_group_tokens:
        return False
    return not (abs(mean) <= tolerances.mean and mean_absolute <= tolerances.mean_absolute)
