"""How busy an engine's slots are while a judge takes several times as long as a rollout. Pure.

Eight slots, rollouts of 2 s in the median, a reward of 10 s: at `--speed 10` that is 0.2 s and 1 s of real time. About
36 rollouts are being scored at a time, of 64 that `reward.max_in_flight` allows.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, rounded, t_interval
from benchmarks.harness.variant import Variant
from benchmarks.scheduling.comparisons import Comparison

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.scheduling.run_result import RunResult

reward_seconds = 10.0
least_busy = 0.95
"""Target: share of the slots' time in which tokens are made, with the judge."""

Interval = tuple[float, float]


def scoring_comparisons(num_seeds: int) -> list[Comparison]:
    """With the judge against rewards that take no time."""
    return [
        Comparison(name="scoring", baseline=_variant(0.0), mode=_variant(reward_seconds), num_seeds=num_seeds)
    ]


def scoring_figures(
    comparisons: Sequence[Comparison], outcomes: Mapping[str, Mapping[int, RunResult]]
) -> list[Figure]:
    """Per variant the share of its slots' time in which tokens are made."""
    figures = []
    for comparison in comparisons:
        for variant in (comparison.mode, comparison.baseline):
            shares = [found.busy_share for found in outcomes.get(variant.name, {}).values()]
            if shares:
                figures.append(_figure(variant, shares))
    return figures


def busy_share(generated: Sequence[Interval], *, num_slots: int, warm_up_seconds: float) -> float:
    """Share of the slots' time that these intervals fill, after the warm-up, until the last of them begins.

    Raises ValueError where nothing begins after the warm-up.
    """
    begin = min(start for start, _ in generated) + warm_up_seconds
    end = max(start for start, _ in generated)
    if end <= begin:
        raise ValueError(
            f"no rollout began more than {warm_up_seconds:g} s after the first; make more of them"
        )
    filled = sum(max(0.0, min(stop, end) - max(start, begin)) for start, stop in generated)
    return filled / (num_slots * (end - begin))


def _figure(variant: Variant, shares: Sequence[float]) -> Figure:
    has_judge = variant.reward_seconds > 0
    return Figure(
        name=f"{variant.name}.busy_slots",
        value=round(fmean(shares), 4),
        unit="share of the slots' time in which tokens are made",
        target=least_busy if has_judge else None,
        ideal=1.0,
        interval=rounded(t_interval(shares)),
        num_draws=len(shares),
    )


def _variant(seconds: float) -> Variant:
    return Variant(
        name=f"scoring.reward_{seconds:g}_s",
        num_groups=100,
        group_size=8,
        slots_per_worker=8,
        prefetch_tasks=8,
        median_seconds=2.0,
        longest_seconds=8.0,
        reward_seconds=seconds,
        warm_up_seconds=3 * reward_seconds,
    )
