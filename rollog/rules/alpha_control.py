"""alpha step by step: constant, by schedule, under control, and 0 at barriers.

Steps are numbered by the version they make, from 1. The value for a step is decided when the ledger record before it
is written, from the configuration and from what the ledger holds alone: a trainer that takes over goes on with the
same values, everybody else reads them in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rollog.rules.freshness import exact, is_stale, lag_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.settings.groups import AlphaSchedule, FreshnessConfig
    from schemas import Step

num_remembered = 2
"""How many of the newest steps the rule looks at; barriers are two steps apart or more, so one of them is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenStep:
    """What the ledger says of a step, as far as the control of alpha needs it.

    `wait_share` is the part of the step's time without a batch. `effective_sample_size` (1 on policy) and
    `divergence` (nats per token) compare behaviour and current policy before the step's first update; None where
    they were not measured.
    """

    number: int
    alpha: float
    wait_share: float
    effective_sample_size: float | None
    divergence: float | None

    @classmethod
    def recorded(cls, number: int, body: Step) -> Self:
        """Step `number` as its ledger record has it."""
        waited = body.timings.wait_seconds
        total = waited + body.timings.train_seconds + body.timings.publish_seconds
        return cls(
            number=number,
            alpha=body.alpha,
            wait_share=waited / total if total > 0 else 0.0,
            effective_sample_size=body.statistics.get("first_effective_sample_size"),
            divergence=body.statistics.get("first_divergence"),
        )


def is_barrier(number: int, freshness: FreshnessConfig) -> bool:
    """Whether a step is taken with alpha 0 whatever else is configured."""
    every = freshness.barrier_every_steps
    return every is not None and number % every == 0


def alpha_of_step(number: int, taken: Sequence[TakenStep], freshness: FreshnessConfig) -> float:
    """The alpha in force at step `number`; `taken` are the steps before it, oldest first, the newest two suffice."""
    if is_barrier(number, freshness):
        return 0.0
    if freshness.alpha == "auto":
        free = [step for step in taken if not is_barrier(step.number, freshness)]
        return controlled(free, freshness) if free else freshness.auto_start
    if isinstance(freshness.alpha, tuple):
        return _scheduled(number - 1, freshness.alpha)
    return freshness.alpha


def may_become_fresh(first_version: int, version: int, freshness: FreshnessConfig) -> bool:
    """Whether what was begun under `first_version` can be fresh at any version after this one, because alpha rises.

    Under `"auto"` any later step may have its largest alpha.
    """
    last = first_version + lag_bound(_highest_alpha(freshness))
    return any(
        not is_stale(later, first_version, _highest_alpha_of_step(later + 1, freshness))
        for later in range(version + 1, last + 1)
    )


def controlled(taken: Sequence[TakenStep], freshness: FreshnessConfig) -> float:
    """The alpha after these steps: less if the newest was too far off policy, more if it waited and all were near it.

    Between the two, where the newest measured nothing, and after step 1, which waits for engines to start, alpha
    stays. It never leaves its bounds, and more off-policyness or less waiting never raises it. Looking at the earlier
    steps too keeps one lucky minibatch from taking back at once what was lowered.
    """
    newest = taken[-1]
    distances = [off_policyness(step, freshness) for step in taken]
    farthest = max((distance for distance in distances if distance is not None), default=0.0)
    direction = 0
    if distances[-1] is not None and distances[-1] > 1:
        direction = -1
    elif distances[-1] is not None and farthest <= freshness.auto_headroom and newest.number > 1:
        direction = int(newest.wait_share >= freshness.auto_wait_share)
    moved = float(exact(newest.alpha) + direction * exact(freshness.auto_step))
    return min(max(moved, freshness.auto_min), freshness.auto_max)


def off_policyness(step: TakenStep, freshness: FreshnessConfig) -> float | None:
    """How far off policy a step was, 1 at the nearer target, about 0 on policy; None where nothing was measured."""
    measured = []
    if step.effective_sample_size is not None:
        lost = 1 - step.effective_sample_size
        measured.append(lost / (1 - freshness.auto_min_effective_sample_size))
    if step.divergence is not None:
        measured.append(step.divergence / freshness.auto_max_divergence)
    return max(measured, default=None)


def _highest_alpha_of_step(number: int, freshness: FreshnessConfig) -> float:
    if freshness.alpha == "auto" and not is_barrier(number, freshness):
        return freshness.auto_max
    return alpha_of_step(number, (), freshness)


def _highest_alpha(freshness: FreshnessConfig) -> float:
    if freshness.alpha == "auto":
        return freshness.auto_max
    if isinstance(freshness.alpha, tuple):
        return max(alpha for _, alpha in freshness.alpha)
    return freshness.alpha


def _scheduled(version: int, schedule: AlphaSchedule) -> float:
    """The value of the last entry that begins at `version` or before."""
    return next(alpha for begin, alpha in reversed(schedule) if begin <= version)
