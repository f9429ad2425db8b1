"""Runs in different modes compared, from queue scheduling to asynchronous training.

Every mode collects the same batches, workload by workload, as real runs on one embedded Apache Kafka; the figures are
ratios of modes beside the same ratio of the ideal model.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.harness.variant import Job
from benchmarks.harness.worker_processes import outcomes, told_results
from benchmarks.scheduling.comparisons import warm_up_variant
from benchmarks.scheduling.figures import speed_figures
from benchmarks.scheduling.parts import measured_parts, played_parts
from benchmarks.scheduling.run_measurement import measure_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.harness.figures import Figure
    from benchmarks.harness.own_kafka import OwnKafka
    from benchmarks.harness.variant import Variant
    from benchmarks.scheduling.comparisons import Comparison
    from benchmarks.scheduling.run_result import Outcomes, RunResult


def measure_scheduling(
    *,
    names: Iterable[str],
    num_seeds: int | None,
    seed: int,
    speed: float,
    num_processes: int,
    kafka: OwnKafka,
    on_progress: Callable[[str], None],
    check_speed: float | None = None,
) -> tuple[list[Figure], int]:
    """All figures of the named parts, which are measured ones, and how many runs failed.

    With `check_speed` the first workload of every variant is run at that speed as well. Without `num_seeds` every part
    takes as many workloads as it is published with. Raises ChildFailed.
    """
    wanted = {name: measured_parts[name] for name in names}
    comparisons = {name: part.comparisons(num_seeds or part.num_seeds) for name, part in wanted.items()}
    jobs = jobs_of([each for found in comparisons.values() for each in found], seed=seed, speed=speed)
    checks = [replace(job, speed=check_speed) for job in jobs if check_speed is not None and job.number == 0]
    jobs += checks
    on_progress(f"{len(jobs)} runs in {num_processes} processes, time {speed:g} times as fast")
    results: Outcomes = defaultdict(dict)
    checked: Outcomes = defaultdict(dict)
    warm_up = Job(variant=warm_up_variant, seed=seed, number=0, speed=speed)
    ended = outcomes(jobs, warm_up, num_processes=num_processes, set_up=kafka.runs(measure_run))
    for job, result in told_results(ended, len(jobs), draw="workload", text=_text, on_progress=on_progress):
        (checked if job in checks else results)[job.variant.name][job.number] = result
    # Parts share baselines, and with them figures.
    figures = {
        figure.name: figure
        for name, found in comparisons.items()
        for figure in wanted[name].figures(found, results)
    }
    num_ended = sum(len(found) for found in (*results.values(), *checked.values()))
    return [*figures.values(), *speed_figures(results, checked)], len(jobs) - num_ended


def play(names: Iterable[str], *, num_seeds: int | None, seed: int) -> list[Figure]:
    """All figures of the named parts, which are played ones."""
    wanted = [played_parts[name] for name in names]
    return [figure for part in wanted for figure in part.figures(num_seeds or part.num_seeds, seed)]


def jobs_of(comparisons: Sequence[Comparison], *, seed: int, speed: float) -> list[Job]:
    """One run per variant and workload.

    The modes of a workload follow one another, so that they share their surroundings.
    """
    wanted: dict[tuple[str, int], Variant] = {}
    for comparison in comparisons:
        for variant in (comparison.baseline, comparison.mode):
            for number in range(comparison.num_seeds):
                wanted.setdefault((variant.name, number), variant)
    ordered = sorted(wanted.items(), key=lambda item: item[0][1])
    return [Job(variant=variant, seed=seed, number=number, speed=speed) for (_, number), variant in ordered]


def _text(variant: Variant, found: RunResult) -> str:
    kind = "s a step" if variant.num_steps > 1 else "s"
    ideal = f", ideal {found.ideal_seconds:.1f} s" if found.ideal_seconds else ""
    return f"{found.seconds:.1f} {kind}{ideal}"
