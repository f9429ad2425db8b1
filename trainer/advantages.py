"""Group-relative advantages: how much better a rollout was than its siblings.

GRPO (arXiv 2402.03300, section 4.1.2): the baseline of a rollout is the mean reward of its own group, the scale
its standard deviation, here the unbiased one (divisor G - 1):

    A_i = (r_i - mean(r)) / (std(r) + epsilon)        mean and std over the G rewards of one prompt

Computed in float64 and rounded to float32 once, so the result does not depend on the order of the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from schemas.arrays import Float32Array, float32_array

if TYPE_CHECKING:
    from collections.abc import Sequence

std_epsilon = 1e-6
"""Added to the standard deviation, so that a group of equal rewards gets advantages of zero."""


def group_advantages(
    rewards: Sequence[float], *, normalize_std: bool = True, epsilon: float = std_epsilon
) -> Float32Array:
    """The advantage of each member of one group.

    Args:
        rewards: the G rewards of one prompt.
        normalize_std: divide by the standard deviation; without it only the mean is taken off (Dr. GRPO,
            arXiv 2503.20783).
        epsilon: added to the standard deviation.

    Raises:
        ValueError: a reward is not finite, or the group is empty.
    """
    values = np.asarray(rewards, dtype=np.float64)
    if values.size == 0:
        raise ValueError("a group without rewards has no advantages")
    if not np.isfinite(values).all():
        raise ValueError(f"rewards must be finite, got {list(rewards)}")
    centred = values - _exact_mean(values)
    if not normalize_std or values.size == 1:
        return float32_array(centred)
    deviation = np.sqrt(np.square(np.sort(np.abs(centred))).sum() / (values.size - 1))
    return float32_array(centred / (deviation + epsilon))


def _exact_mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """The mean, summed in sorted order: the same for every permutation, and exact for equal values."""
    ordered = np.sort(values)
    first = float(ordered[0])
    return first + float((ordered - first).sum()) / ordered.size
