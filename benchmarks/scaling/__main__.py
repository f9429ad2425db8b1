"""`python -m benchmarks.scaling`: what more workers bring, and what they cost the dispatcher."""

from __future__ import annotations

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, progress, report, run


@click.command("scaling")
@count_option(
    "--seeds", "num_seeds", 1, "Workloads that each number of workers gets, with seeds from --seed on."
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Engine seconds in a real second: a rollout takes 10 engine seconds on average.",
)
@click.option(
    "--response-tokens",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Length of the long answers to the dispatcher's tasks; the short ones have 16 tokens.",
)
@bench_options
def scaling(*, num_seeds: int, speed: float, response_tokens: int, options: BenchOptions) -> None:
    """Measure scaling: tasks per second of more and more workers, and what the dispatcher takes for them.

    Every role has processes of its own on one embedded Apache Kafka; the engine is simulated. The dispatcher's limit
    is found with workers that answer every task at once, and with ones whose heartbeats name open tasks and whose
    answers are long.
    """
    from benchmarks.harness.own_kafka import own_kafka
    from benchmarks.scaling.measure import measure_scaling

    with own_kafka(options.home) as kafka:
        figures = measure_scaling(
            num_seeds=num_seeds,
            seed=options.seed,
            speed=speed,
            kafka=kafka,
            on_progress=progress,
            response_tokens=response_tokens,
        )
    report(figures, options)


if __name__ == "__main__":
    run(scaling)
