"""`python -m benchmarks.reloads`: what a new version costs while workers fetch it in the shadow of the one before."""

from __future__ import annotations

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, progress, report, run


@click.command("reloads")
@count_option("--seeds", "num_seeds", 4, "Workloads.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Engine seconds in a real second: the higher, the more the overheads weigh.",
)
@count_option("--processes", "num_processes", 4, "Runs beside each other, each in a process of its own.")
@bench_options
def reloads(*, num_seeds: int, speed: float, num_processes: int, options: BenchOptions) -> None:
    """Measure reloads: slots kept busy, step time and stale samples, at fetches from none to as long as a step.

    Real runs on an embedded Apache Kafka of its own: dispatcher, two rollout workers and trainer, with a simulated
    engine whose time is scaled; a fetch waits for its time. Ratios are over the same run with reloads that take no
    time; beside them are workers that stand still from the notice on. Exit status 1 if runs failed; their
    workloads are left out.
    """
    from benchmarks.harness.own_kafka import own_kafka
    from benchmarks.reloads.measure import measure_reloads

    with own_kafka(options.home) as kafka:
        figures, num_failed = measure_reloads(
            num_seeds=num_seeds,
            seed=options.seed,
            speed=speed,
            num_processes=num_processes,
            kafka=kafka,
            on_progress=progress,
        )
    report(figures, options, num_failed=num_failed)


if __name__ == "__main__":
    run(reloads)
