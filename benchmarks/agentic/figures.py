"""What two ways of playing the same draws say: ratios of their times, beside the same ratio of the ideal. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, bootstrap_interval, ratio_of_means, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.agentic.run_measurement import EpisodeResult
    from benchmarks.agentic.variants import Comparison, EpisodeVariant

Outcomes = dict[str, dict[int, "EpisodeResult"]]
"""By name of the variant and number of the draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Baseline and mode on one draw."""

    baseline: EpisodeResult
    mode: EpisodeResult


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
        numbers = sorted(baseline.keys() & mode.keys())
        pairs = [_Pair(baseline=baseline[number], mode=mode[number]) for number in numbers]
        if not pairs:
            continue
        both = (
            *_ratios(comparison, least_share_of_ideal, pairs),
            *_of_variant(comparison.baseline, [pair.baseline for pair in pairs]),
            *_of_variant(comparison.mode, [pair.mode for pair in pairs]),
        )
        figures |= {figure.name: figure for figure in both}
    return list(figures.values())


def _ratios(comparison: Comparison, least: float, pairs: Sequence[_Pair]) -> list[Figure]:
    ideal = _ideal_speedup(pairs)
    return [
        Figure(
            name=f"agentic.{comparison.name}.speedup",
            value=round(_speedup(pairs), 4),
            unit=f"times as fast as {comparison.baseline.name}",
            target=round(least * ideal, 4),
            ideal=round(ideal, 4),
            interval=rounded(bootstrap_interval(pairs, _speedup)),
            num_draws=len(pairs),
        ),
        Figure(
            name=f"agentic.{comparison.name}.speedup_over_ideal_baseline",
            value=round(_over_ideal(pairs), 4),
            unit=f"ideal time of {comparison.baseline.name} / measured time: what the baseline loses does not count",
            target=round(least * ideal, 4),
            ideal=round(ideal, 4),
            interval=rounded(bootstrap_interval(pairs, _over_ideal)),
            num_draws=len(pairs),
        ),
        Figure(
            name=f"agentic.{comparison.name}.share_of_ideal",
            value=round(_share(pairs), 4),
            unit="measured speed-up / ideal speed-up on the same draws",
            target=least,
            ideal=1.0,
            interval=rounded(bootstrap_interval(pairs, _share)),
            num_draws=len(pairs),
        ),
        Figure(
            name=f"agentic.{comparison.name}.efficiency",
            value=round(_efficiency(pairs), 4),
            unit="ideal time / measured time of this mode alone, whatever its baseline loses",
            target=least,
            ideal=1.0,
            interval=rounded(bootstrap_interval(pairs, _efficiency)),
            num_draws=len(pairs),
        ),
    ]


def _of_variant(variant: EpisodeVariant, found: Sequence[EpisodeResult]) -> list[Figure]:
    several = variant.num_steps > 1
    num_trained = variant.num_steps * variant.num_groups * variant.group_size
    per_turn = fmean(1000 * each.cpu_seconds / max(1, each.num_turns) for each in found)
    rows = (
        ("seconds", fmean(each.seconds for each in found), _seconds_unit(several=several)),
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


def _seconds_unit(*, several: bool) -> str:
    return (
        "s of engine time for a step" if several else "s of engine time from the first task to the full batch"
    )


def _speedup(pairs: Sequence[_Pair]) -> float:
    return ratio_of_means([(pair.baseline.seconds, pair.mode.seconds) for pair in pairs])


def _ideal_speedup(pairs: Sequence[_Pair]) -> float:
    return ratio_of_means([(pair.baseline.ideal_seconds, pair.mode.ideal_seconds) for pair in pairs])


def _over_ideal(pairs: Sequence[_Pair]) -> float:
    return ratio_of_means([(pair.baseline.ideal_seconds, pair.mode.seconds) for pair in pairs])


def _share(pairs: Sequence[_Pair]) -> float:
    return _speedup(pairs) / _ideal_speedup(pairs)


def _efficiency(pairs: Sequence[_Pair]) -> float:
    return ratio_of_means([(pair.mode.ideal_seconds, pair.mode.seconds) for pair in pairs])
