"""`python -m benchmarks.dispatcher`: what a task costs the dispatcher, and how many workers one carries."""

from __future__ import annotations

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, progress, report, run


@click.command("dispatcher")
@count_option("--seeds", "num_seeds", 5, "Measurements of each load, with seeds from --seed on.")
@click.option(
    "--client",
    default="",
    help="Kafka client library of every role (`broker.client`); left out, the default one.",
)
@click.option(
    "--only",
    type=click.Choice(["memory", "kafka", "fleet"]),
    default=None,
    help="One part: the cost on a broker in memory, the cost on Apache Kafka, 256 workers with tasks of 1 s.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="How long each load is measured.",
)
@bench_options
def dispatcher(
    *, num_seeds: int, client: str, only: str | None, seconds: float, options: BenchOptions
) -> None:
    """Measure the dispatcher: processor time of a task, and the throughput of 256 workers.

    Tasks are answered by workers that generate nothing. On Kafka dispatcher and workers have processes of their own.
    """
    from benchmarks.dispatcher.measure import measure_dispatcher_costs

    figures = measure_dispatcher_costs(
        num_seeds=num_seeds,
        seed=options.seed,
        client=client,
        only=only,
        seconds=seconds,
        home=options.home,
        on_progress=progress,
    )
    report(figures, options)


if __name__ == "__main__":
    run(dispatcher)
