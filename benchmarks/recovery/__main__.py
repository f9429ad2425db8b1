"""`python -m benchmarks.recovery`: a killed trainer that comes back, against training the missing steps again."""

from __future__ import annotations

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, progress, report, run


@click.command("recovery")
@count_option("--rounds", "num_rounds", 5, "How often each of the two is timed, in turns.")
@bench_options
def recovery(*, num_rounds: int, options: BenchOptions) -> None:
    """Time the recovery of a killed trainer against loading its checkpoint and training the missing steps again."""
    from benchmarks.harness.own_kafka import own_kafka
    from benchmarks.recovery.measure import measure_recovery

    with own_kafka(options.home) as kafka:
        figures = measure_recovery(
            num_rounds=num_rounds, seed=options.seed, kafka=kafka, on_progress=progress
        )
    report(figures, options)


if __name__ == "__main__":
    run(recovery)
