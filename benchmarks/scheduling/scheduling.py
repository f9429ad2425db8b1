"""`rollog bench scheduling`: runs in different modes compared, from queue scheduling to asynchronous training.

Every mode collects the same batches, draw by draw, as real runs on one embedded Apache Kafka; the figures are ratios
of modes beside the same ratio of the ideal model.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, bootstrap_interval, ratio_of_means, rounded
from benchmarks.harness.worker_process import Job
from benchmarks.harness.worker_processes import Lanes, lane_command
from benchmarks.scaling.scaling import measure_scaling
from benchmarks.scheduling.asynchrony import training_comparisons
from benchmarks.scheduling.items import Item
from benchmarks.scheduling.protection import protection_comparisons, protection_figures
from benchmarks.scheduling.slow_worker import slow_worker_comparisons, slow_worker_figures
from benchmarks.scheduling.variants import queue_comparisons, replication_comparisons, warm_up_variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.harness.run_result import Collected
    from benchmarks.scheduling.variants import Comparison, Variant

least_share_of_ideal = 0.95
"""Target: the measured ratio over the ideal one on the same draws."""

comparisons_of_item = {
    Item.QUEUE: queue_comparisons,
    Item.REPLICATION: replication_comparisons,
    Item.TRAINING: training_comparisons,
    Item.PROTECTION: protection_comparisons,
    Item.SLOW_WORKER: slow_worker_comparisons,
}

Outcomes = dict[str, dict[int, "Collected"]]
"""By name of the variant and number of the draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Baseline and mode on one draw."""

    baseline: Collected
    mode: Collected


def measure_scheduling(
    *,
    items: Iterable[Item],
    num_draws: int,
    seed: int,
    speed: float,
    num_lanes: int,
    address: str,
    home: Path,
    on_progress: Callable[[str], None],
) -> tuple[list[Figure], int]:
    """All figures of the chosen items, and how many runs failed. Progress comes as lines of text."""
    chosen = set(items)
    comparisons = {
        item: comparisons_of_item[item](num_draws) for item in sorted(chosen & comparisons_of_item.keys())
    }
    jobs = jobs_of([each for found in comparisons.values() for each in found], seed=seed, speed=speed)
    outcomes: Outcomes = {}
    num_failed = 0
    if jobs:
        on_progress(f"{len(jobs)} runs on {num_lanes} lanes, time {speed:g} times as fast")
        lanes = Lanes(num_lanes, lane_command(address, home))
        warm_up = Job(variant=warm_up_variant, seed=seed, number=0, speed=speed)
        outcomes, num_failed = _outcomes(lanes, jobs, warm_up, on_progress)
    figures = [
        figure for item, found in comparisons.items() for figure in figures_of_item(item, found, outcomes)
    ]
    if Item.SCALING in chosen:
        figures += measure_scaling(
            num_draws=num_draws, seed=seed, speed=speed, address=address, home=home, on_progress=on_progress
        )
    return figures, num_failed


def figures_of_item(item: Item, comparisons: Sequence[Comparison], outcomes: Outcomes) -> list[Figure]:
    """What an item has to say about its comparisons."""
    match item:
        case Item.PROTECTION:
            return protection_figures(comparisons, outcomes)
        case Item.SLOW_WORKER:
            return slow_worker_figures(comparisons, outcomes)
        case _:
            return figures_of(comparisons, outcomes)


def _outcomes(
    lanes: Lanes, jobs: Sequence[Job], warm_up: Job, on_progress: Callable[[str], None]
) -> tuple[Outcomes, int]:
    """What the runs took, and how many failed."""
    outcomes: Outcomes = defaultdict(dict)
    num_failed = 0
    for number, (job, outcome) in enumerate(lanes.outcomes(jobs, warm_up), start=1):
        place = f"{number}/{len(jobs)} {job.variant.name} draw {job.number}"
        if outcome.collected is None:
            num_failed += 1
            on_progress(f"{place}: FAILED twice, its draw is left out: {outcome.error}")
            continue
        outcomes[job.variant.name][job.number] = outcome.collected
        on_progress(f"{place}: {_told(job.variant, outcome.collected)}")
    return outcomes, num_failed


def _told(variant: Variant, found: Collected) -> str:
    kind = "s a step" if variant.num_steps > 1 else "s"
    ideal = f", ideal {found.ideal_seconds:.1f} s" if found.ideal_seconds else ""
    return f"{found.seconds:.1f} {kind}{ideal}"


def jobs_of(comparisons: Sequence[Comparison], *, seed: int, speed: float) -> list[Job]:
    """One run per variant and draw; the modes of a draw follow one another, so that they share their surroundings."""
    wanted: dict[tuple[str, int], tuple[Variant, int]] = {}
    for comparison in comparisons:
        for variant in (comparison.baseline, comparison.mode):
            for number in range(comparison.num_draws):
                wanted.setdefault((variant.name, number), (variant, number))
    last = max((number for _, number in wanted.values()), default=0)
    return [
        Job(variant=variant, seed=seed, number=number, speed=speed)
        for draw in range(last + 1)
        for variant, number in wanted.values()
        if number == draw
    ]


def figures_of(
    comparisons: Sequence[Comparison], outcomes: Mapping[str, Mapping[int, Collected]]
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
            if number < comparison.num_draws
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
            unit="measured speed-up / ideal speed-up on the same draws",
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


def _speedup(pairs: Sequence[_Pair]) -> float:
    return ratio_of_means([(pair.baseline.seconds, pair.mode.seconds) for pair in pairs])


def _ideal_speedup(pairs: Sequence[_Pair]) -> float:
    return ratio_of_means([(pair.baseline.ideal_seconds, pair.mode.ideal_seconds) for pair in pairs])


def _share(pairs: Sequence[_Pair]) -> float:
    return _speedup(pairs) / _ideal_speedup(pairs)


def _efficiency(pairs: Sequence[_Pair]) -> float:
    return ratio_of_means([(pair.mode.ideal_seconds, pair.mode.seconds) for pair in pairs])
