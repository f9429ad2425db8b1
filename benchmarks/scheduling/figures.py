"""What two variants on the same workloads say: ratios of their times, beside the same ratio of the ideal. Pure."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure
from benchmarks.harness.speedups import (
    efficiency_figure,
    paired,
    seconds_unit,
    share_figure,
    speedup_figure,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.harness.speedups import Pairs
    from benchmarks.harness.variant import Variant
    from benchmarks.scheduling.comparisons import Comparison
    from benchmarks.scheduling.run_result import RunResult

least_share_of_ideal = 0.95
"""Target: the measured ratio over the ideal one on the same workloads."""


def figures_of(
    comparisons: Sequence[Comparison], outcomes: Mapping[str, Mapping[int, RunResult]]
) -> list[Figure]:
    """Per comparison the speed-up, its share of the ideal, the mode's own efficiency, and the seconds of both."""
    figures: dict[str, Figure] = {}
    for comparison in comparisons:
        baseline, mode = (
            outcomes.get(variant.name, {}) for variant in (comparison.baseline, comparison.mode)
        )
        pairs = [pair for number, pair in paired(baseline, mode).items() if number < comparison.num_seeds]
        if not pairs:
            continue
        for figure in (*_ratios(comparison, pairs), *_seconds(comparison, pairs)):
            figures[figure.name] = figure
    return list(figures.values())


def _ratios(comparison: Comparison, pairs: Pairs[RunResult]) -> list[Figure]:
    name, baseline = f"scheduling.{comparison.name}", comparison.baseline.name
    return [
        speedup_figure(f"{name}.speedup", pairs, baseline=baseline, least_share=least_share_of_ideal),
        share_figure(f"{name}.share_of_ideal", pairs, draws="workloads", least_share=least_share_of_ideal),
        efficiency_figure(f"{name}.efficiency", pairs),
    ]


def _seconds(comparison: Comparison, pairs: Pairs[RunResult]) -> list[Figure]:
    sides = (
        (comparison.baseline, [pair.baseline for pair in pairs]),
        (comparison.mode, [pair.mode for pair in pairs]),
    )
    return [
        Figure(
            name=f"scheduling.{variant.name}.seconds",
            value=round(fmean(found.seconds for found in side), 2),
            unit=seconds_unit(variant),
            ideal=round(fmean(found.ideal_seconds for found in side), 2),
            higher_is_better=False,
            num_draws=len(side),
        )
        for variant, side in sides
    ]


def orders_figure(variant: Variant, found: Sequence[RunResult], name: str | None = None) -> Figure:
    """How many rollouts a variant of several steps orders for each one that it trains."""
    num_trained = variant.num_steps * variant.num_groups * variant.group_size
    return Figure(
        name=name or f"scheduling.{variant.name}.orders",
        value=round(fmean(each.num_tasks for each in found) / num_trained, 4),
        unit="rollouts ordered per rollout trained",
        higher_is_better=False,
        num_draws=len(found),
    )


def speed_figures(
    results: Mapping[str, Mapping[int, RunResult]], checked: Mapping[str, Mapping[int, RunResult]]
) -> list[Figure]:
    """Per variant its engine time at the speed of the figures over that at the speed of the check: 1 undistorted."""
    return [
        Figure(
            name=f"scheduling.{name}.speed_check",
            value=round(results[name][number].seconds / found.seconds, 4),
            unit="engine time at --speed / at --check-speed on the same workload",
            ideal=1.0,
            higher_is_better=False,
            num_draws=1,
        )
        for name, by_number in checked.items()
        for number, found in by_number.items()
        if number in results.get(name, {})
    ]
