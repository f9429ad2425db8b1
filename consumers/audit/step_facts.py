"""What a step's record says that is compared with its samples when these have been read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemas import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """How often a plan names which positions, and its ranks.

    A whole plan names each of the first `num_positions` as often, `times`. Of another `odd` holds the counts.
    """

    num_positions: int
    times: int
    ranks: frozenset[int]
    odd: Mapping[int, int] | None

    @property
    def counts(self) -> Mapping[int, int]:
        """How often it names each position."""
        return dict.fromkeys(range(self.num_positions), self.times) if self.odd is None else self.odd


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """A step without its plan's positions, losses, statistics and timings."""

    num_samples: int
    num_groups: int
    num_tokens: int
    lags: dict[str, int]
    reward_mean: float
    plan: PlanFacts


def facts_of(step: Step) -> StepFacts:
    """What is kept of a step."""
    return StepFacts(
        num_samples=step.num_samples,
        num_groups=step.num_groups,
        num_tokens=step.num_tokens,
        lags=step.lags,
        reward_mean=step.reward_mean,
        plan=_plan_facts(step),
    )


def _plan_facts(step: Step) -> PlanFacts:
    counts = Counter(position for part in step.plan for position in part.positions)
    is_whole = set(counts) == set(range(len(counts))) and len(set(counts.values())) <= 1
    return PlanFacts(
        num_positions=len(counts),
        times=next(iter(counts.values()), 0),
        ranks=frozenset(part.rank for part in step.plan),
        odd=None if is_whole else counts,
    )
