"""`python -m benchmarks.agentic`: what asynchronous and redundant environments bring."""

from __future__ import annotations

import click

from benchmarks.agentic.variants import parts
from benchmarks.harness.options import (
    BenchOptions,
    bench_options,
    count_option,
    draws_option,
    parts_option,
    progress,
    report,
    run,
)


@click.command("agentic")
@parts_option({name: part.question for name, part in parts.items()}, next(iter(parts)))
@draws_option("--draws", "num_draws", "Draws", {name: part.num_draws for name, part in parts.items()})
@click.option(
    "--environments",
    "num_environments",
    type=click.IntRange(min=8),
    help="Environments without redundancy, in groups of 8; left out, "
    f"{', '.join(f'{part.num_environments} for {name}' for name, part in parts.items())}. The last takes no other.",
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    help="Engine seconds in a real second: the higher, the more the overheads weigh. Left out, "
    f"{', '.join(f'{part.speed:g} for {name}' for name, part in parts.items())}.",
)
@count_option("--processes", "num_processes", 2, "Runs beside each other, each in a process of its own.")
@bench_options
def agentic(
    *,
    only: tuple[str, ...],
    num_draws: int | None,
    num_environments: int | None,
    speed: float | None,
    num_processes: int,
    options: BenchOptions,
) -> None:
    """Measure episodes: environments in lock-step, on their own, in excess, and in training.

    Real runs on an embedded Apache Kafka of its own: dispatcher, rollout worker, trainer, and environments in a process
    of the worker's pool. Simulated are the engine and how long environments take, in scaled time. Latencies,
    slow and hanging environments are a hash of (seed, number, group, replica, attempt), the same for every way and for
    the ideal that each ratio stands beside. Exit status 1 if runs failed; their draws are left out.
    """
    from benchmarks.agentic.measure import measure_agentic
    from benchmarks.harness.own_kafka import own_kafka

    with own_kafka(options.home) as kafka:
        figures, details, num_failed = measure_agentic(
            names=only,
            num_draws=num_draws,
            num_environments=num_environments,
            seed=options.seed,
            speed=speed,
            num_processes=num_processes,
            kafka=kafka,
            on_progress=progress,
        )
    report(figures, options, details=details, num_failed=num_failed)


if __name__ == "__main__":
    run(agentic)
