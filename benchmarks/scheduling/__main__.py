"""`python -m benchmarks.scheduling`: the time to a full batch and of a training step, in different modes."""

from __future__ import annotations

import click

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
from benchmarks.scheduling.parts import measured_by_default, measured_parts, parts, played_parts


@click.command("scheduling")
@parts_option({name: part.question for name, part in parts.items()}, ",".join(measured_by_default))
@draws_option("--seeds", "num_seeds", "Workloads", {name: part.num_seeds for name, part in parts.items()})
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Engine seconds in a real second: the higher, the more the overheads weigh.",
)
@click.option(
    "--check-speed",
    type=click.FloatRange(min=0, min_open=True),
    help="Run workload 0 of every mode at this speed as well, and tell the ratio of the times; 1 is no distortion.",
)
@count_option("--processes", "num_processes", 4, "Runs beside each other, each in a process of its own.")
@bench_options
def scheduling(
    *,
    only: tuple[str, ...],
    num_seeds: int | None,
    speed: float,
    check_speed: float | None,
    num_processes: int,
    options: BenchOptions,
) -> None:
    """Measure scheduling: the time to a full batch, and of a training step.

    Real runs on an embedded Apache Kafka of its own: dispatcher, rollout workers and trainer, with a simulated engine
    whose time is scaled. Durations and verdicts are a hash of (seed, number, group, replica), the same for every mode
    and for the ideal that each ratio stands beside. Exit status 1 if runs failed; their workloads are left out. Parts
    that are only played in discrete events need no broker: --speed and --processes change nothing in them.
    """
    if check_speed == speed:
        raise click.BadParameter(
            f"{check_speed:g} is --speed itself; give another, lower one", param_hint="--check-speed"
        )
    from benchmarks.harness.own_kafka import own_kafka
    from benchmarks.scheduling.measure import measure_scheduling, play

    figures = play([name for name in only if name in played_parts], num_seeds=num_seeds, seed=options.seed)
    names_measured = [name for name in only if name in measured_parts]
    num_failed = 0
    if names_measured:
        with own_kafka(options.home) as kafka:
            measured, num_failed = measure_scheduling(
                names=names_measured,
                num_seeds=num_seeds,
                seed=options.seed,
                speed=speed,
                check_speed=check_speed,
                num_processes=num_processes,
                kafka=kafka,
                on_progress=progress,
            )
        figures += measured
    report(figures, options, num_failed=num_failed)


if __name__ == "__main__":
    run(scheduling)
