"""What two variants on the same workloads say: ratios of their times, beside the same ratio of the ideal. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, bootstrap_interval, ratio_of_means, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.harness.variant import Variant
    from benchmarks.scheduling.comparisons import Comparison
    from benchmarks.scheduling.run_result import RunResult

least_share_of_ideal = 0.95
"""Target: the measured ratio over the ideal one on the same workloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Baseline and mode on one workload."""

    baseline: RunResult
    mode: RunResult


def figures_of(
    comparisons: Sequence[Comparison], outcomes: Mapping[str, Mapping[int, RunResult]]
) -> list[Figure]:
    """Per comparison the speed-up, its share of the ideal, the mode's own efficiency, and the seconds of both."""
    figures: dict[str, Figure] = {}
    for comparison in comparisons:
        baseline, mode = (
            outcomes.get(variant.name, {}) for variant in (comparison.baseline, comparison.mode)
        )
        pairs = [
            _Pair(baseline=baseline[number], mode=mode[number])
            for number in sorted(baseline.keys() & mode.keys())
            if number < comparison.num_seeds
        ]
        if not pairs:
            continue
        for figure in (*_ratios(comparison, pairs), *_seconds(comparison, pairs)):
            figures[figure.name] = figure
    return list(figures.values())


def _ratios(comparison: Comparison, pairs: Sequence[_Pair]) -> list[Figure]:
    ideal = _ideal_speedup(pairs)
    return [
        Figure(
            name=f"scheduling.{comparison.name}.speedup",
            value=round(_speedup(pairs), 4),
            unit=f"times as fast as {comparison.baseline.name}",
            target=round(least_share_of_ideal * ideal, 4),
            ideal=round(ideal, 4),
            interval=rounded(bootstrap_interval(pairs, _speedup)),
            num_draws=len(pairs),
        ),
        Figure(
            name=f"scheduling.{comparison.name}.share_of_ideal",
            value=round(_share(pairs), 4),
            unit="measured speed-up / ideal speed-up on the same workloads",
            target=least_share_of_ideal,
            ideal=1.0,
            interval=rounded(bootstrap_interval(pairs, _share)),
            num_draws=len(pairs),
        ),
        Figure(
            name=f"scheduling.{comparison.name}.efficiency",
            value=round(_efficiency(pairs), 4),
            unit="ideal time / measured time of this mode alone, whatever its baseline loses",
            ideal=1.0,
            interval=rounded(bootstrap_interval(pairs, _efficiency)),
            num_draws=len(pairs),
        ),
    ]


def _seconds(comparison: Comparison, pairs: Sequence[_Pair]) -> list[Figure]:
    sides = (
        (comparison.baseline, [pair.baseline for pair in pairs]),
        (comparison.mode, [pair.mode for pair in pairs]),
    )
    return [
        Figure(
            name=f"scheduling.{variant.name}.seconds",
            value=round(fmean(found.seconds for found in side), 2),
            unit="s of engine time for a step"
            if variant.num_steps > 1
            else "s of engine time from the first task to the full batch",
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


def _speedup(pairs: Sequence[_Pair]) -> float:
    return ratio_of_means([(pair.baseline.seconds, pair.mode.seconds) for pair in pairs])


def _ideal_speedup(pairs: Sequence[_Pair]) -> float:
    return ratio_of_means([(pair.baseline.ideal_seconds, pair.mode.ideal_seconds) for pair in pairs])


def _share(pairs: Sequence[_Pair]) -> float:
    return _speedup(pairs) / _ideal_speedup(pairs)


def _efficiency(pairs: Sequence[_Pair]) -> float:
    return ratio_of_means([(pair.mode.ideal_seconds, pair.mode.seconds) for pair in pairs])
