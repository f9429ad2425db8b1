"""Ways of playing episodes compared: real runs on one embedded Apache Kafka, draw by draw, beside their ideal."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.agentic.figures import figures_of
from benchmarks.agentic.run_measurement import measure_run
from benchmarks.agentic.variants import EpisodeVariant, parts
from benchmarks.harness.variant import Job
from benchmarks.harness.worker_processes import outcomes, told_results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.agentic.figures import Outcomes
    from benchmarks.agentic.run_measurement import EpisodeResult
    from benchmarks.agentic.variants import Comparison
    from benchmarks.harness.figures import Figure
    from benchmarks.harness.own_kafka import OwnKafka
    from benchmarks.harness.variant import Variant

_warm_up_variant = EpisodeVariant(
    name="warm_up", num_groups=2, group_size=2, slots_per_worker=4, num_turns=2, sigma=1.0
)
"""A small run that counts for nothing."""
_warm_up_speed = 50.0


def measure_agentic(
    *,
    names: Sequence[str],
    num_draws: int | None,
    seed: int,
    num_environments: int | None,
    speed: float | None,
    num_processes: int,
    kafka: OwnKafka,
    on_progress: Callable[[str], None],
) -> tuple[list[Figure], dict[str, object], int]:
    """All figures of the named parts, what every run took, and how many runs failed. Raises ChildFailed.

    Without `num_draws`, `num_environments` and `speed` every part has those that it is published with.
    """
    comparisons = {
        name: parts[name].comparisons(num_environments or parts[name].num_environments) for name in names
    }
    jobs = [
        job
        for name, found in comparisons.items()
        for job in jobs_of(
            found,
            num_draws=num_draws or parts[name].num_draws,
            seed=seed,
            speed=speed or parts[name].speed,
        )
    ]
    found: Outcomes = defaultdict(dict)
    warm_up = Job(variant=_warm_up_variant, seed=seed, number=0, speed=_warm_up_speed)
    ended = outcomes(jobs, warm_up, num_processes=num_processes, set_up=kafka.runs(measure_run))
    for job, result in told_results(ended, len(jobs), draw="draw", text=_text, on_progress=on_progress):
        found[job.variant.name][job.number] = result
    figures = [
        figure
        for name in names
        for figure in figures_of(
            comparisons[name], found, least_share_of_ideal=parts[name].least_share_of_ideal
        )
    ]
    runs = {
        name: {str(number): asdict(each) for number, each in sorted(by_number.items())}
        for name, by_number in found.items()
    }
    return figures, {"runs": runs}, len(jobs) - sum(len(by_number) for by_number in found.values())


def jobs_of(comparisons: Sequence[Comparison], *, num_draws: int, seed: int, speed: float) -> list[Job]:
    """One run for each variant and draw; those of a draw follow one another."""
    variants = {
        variant.name: variant
        for comparison in comparisons
        for variant in (comparison.baseline, comparison.mode)
    }
    return [
        Job(variant=variant, seed=seed, number=number, speed=speed)
        for number in range(num_draws)
        for variant in variants.values()
    ]


def _text(variant: Variant, found: EpisodeResult) -> str:
    del variant
    return f"{found.seconds:.1f} s, ideal {found.ideal_seconds:.1f} s"
