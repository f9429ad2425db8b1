"""When a sample is stale: how old a rollout may be when it is trained (I3)."""

from __future__ import annotations

import math
from fractions import Fraction


def lag_bound(alpha: float) -> int:
    """Largest lag that is fresh: ceil(alpha)."""
    return math.ceil(alpha)


def lag_quota(alpha: float, groups_per_batch: int) -> int | None:
    """How many groups of a batch may have the largest lag; None where alpha is whole: all of them."""
    fraction = exact(alpha) % 1
    return math.floor(fraction * groups_per_batch) if fraction > 0 else None


def exact(alpha: float) -> Fraction:
    """The decimal number that was configured: 1.2 has the fraction 1/5, not a little less."""
    return Fraction(str(alpha))


def is_stale(version: int, first_version: int, alpha: float) -> bool:
    """Whether a sample begun under `first_version` is too old for a step taken at `version`."""
    return version - first_version > lag_bound(alpha)


def min_version(
    version: int, num_groups_ahead: int, groups_per_batch: int, alpha: float, *, protected: bool
) -> int:
    """The version a worker must serve before it begins a task issued at `version`.

    A group with `num_groups_ahead` open groups before it is consumed `num_groups_ahead // groups_per_batch`
    steps from now; alpha forgives floor(alpha) of them. Rollouts of protected groups begin with the newest.
    """
    if protected:
        return version
    expected = version + num_groups_ahead // groups_per_batch - math.floor(alpha)
    return max(0, min(version, expected))


def newest_version_while_protected(first_version: int, alpha: float) -> int:
    """The highest version that may be made while a protected group's oldest rollout began under `first_version`."""
    return first_version + math.floor(alpha)
