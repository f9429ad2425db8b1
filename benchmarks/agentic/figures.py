"""What two ways of playing the same draws say: ratios of their times, beside the same ratio of the ideal. Pure."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure
from benchmarks.harness.speedups import (
    efficiency_figure,
    ideal_speedup,
    pair_figure,
    paired,
    seconds_unit,
    share_figure,
    speedup_figure,
    speedup_over_ideal,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.agentic.run_measurement import EpisodeResult
    from benchmarks.agentic.variants import Comparison, EpisodeVariant
    from benchmarks.harness.speedups import Pairs

Outcomes = dict[str, dict[int, "EpisodeResult"]]
"""By name of the variant and number of the draw."""


def figures_of(
    comparisons: Sequence[Comparison],
    outcomes: Mapping[str, Mapping[int, EpisodeResult]],
    *,
    least_share_of_ideal: float,
) -> list[Figure]:
    """Per comparison the speed-up, its share of the ideal and the mode's efficiency; per variant what a run took."""
    figures: dict[str, Figure] = {}
    for comparison in comparisons:
        baseline, mode = (
            outcomes.get(variant.name, {}) for variant in (comparison.baseline, comparison.mode)
        )
        pairs = list(paired(baseline, mode).values())
        if not pairs:
            continue
        both = (
            *_ratios(comparison, least_share_of_ideal, pairs),
            *_of_variant(comparison.baseline, [pair.baseline for pair in pairs]),
            *_of_variant(comparison.mode, [pair.mode for pair in pairs]),
        )
        figures |= {figure.name: figure for figure in both}
    return list(figures.values())


def _ratios(comparison: Comparison, least: float, pairs: Pairs[EpisodeResult]) -> list[Figure]:
    name, baseline = f"agentic.{comparison.name}", comparison.baseline.name
    ideal = ideal_speedup(pairs)
    return [
        speedup_figure(f"{name}.speedup", pairs, baseline=baseline, least_share=least),
        pair_figure(
            f"{name}.speedup_over_ideal_baseline",
            speedup_over_ideal,
            pairs,
            f"ideal time of {baseline} / measured time: what the baseline loses does not count",
            target=round(least * ideal, 4),
            ideal=round(ideal, 4),
        ),
        share_figure(f"{name}.share_of_ideal", pairs, draws="draws", least_share=least),
        efficiency_figure(f"{name}.efficiency", pairs, target=least),
    ]


def _of_variant(variant: EpisodeVariant, found: Sequence[EpisodeResult]) -> list[Figure]:
    num_trained = variant.num_steps * variant.num_groups * variant.group_size
    per_turn = fmean(1000 * each.cpu_seconds / max(1, each.num_turns) for each in found)
    rows = (
        ("seconds", fmean(each.seconds for each in found), seconds_unit(variant)),
        (
            "orders",
            fmean(each.num_tasks for each in found) / num_trained,
            "episodes ordered per episode trained",
        ),
        ("failed", fmean(each.failed for each in found), "episodes of a run that ran into the time-out"),
        ("cancelled", fmean(each.cancelled for each in found), "episodes of a run that were cancelled"),
        ("kills", fmean(each.kills for each in found), "processes of environments of a run that were killed"),
        ("cpu", per_turn, "ms of processor per finished turn: dispatcher, worker, trainer and environments"),
    )
    ideal = round(fmean(each.ideal_seconds for each in found), 2)
    return [
        Figure(
            name=f"agentic.{variant.name}.{name}",
            value=round(value, 3),
            unit=unit,
            ideal=ideal if name == "seconds" else None,
            higher_is_better=False,
            num_draws=len(found),
        )
        for name, value, unit in rows
    ]
