"""`python -m benchmarks.growth`: what the age of a run costs whoever starts on it, or reads it."""

from __future__ import annotations

import click

from benchmarks.growth.reading import readings
from benchmarks.harness.options import BenchOptions, bench_options, progress, report, run


@click.command("growth")
@click.option(
    "--samples",
    "sizes",
    type=click.IntRange(min=100),
    multiple=True,
    default=(10_000, 100_000, 300_000),
    show_default=True,
    help="Trained samples of a fabricated run, 100 a step; give it several times for several runs.",
)
@click.option(
    "--reading",
    "chosen",
    type=click.Choice(list(readings)),
    multiple=True,
    help="Measure this alone; give it several times for several. Without it all are measured.",
)
@bench_options
def growth(*, sizes: tuple[int, ...], chosen: tuple[str, ...], options: BenchOptions) -> None:
    """Measure how start and reading of a run grow with it: seconds and memory above those of an empty run.

    Runs are fabricated on one embedded Apache Kafka. Audit, lineage, prune, what watch and plan read, and the start of
    dispatcher and trainer (with a simulated engine), each at first and again, are measured in processes of their own.
    """
    from benchmarks.growth.measure import measure_growth
    from benchmarks.harness.own_kafka import own_kafka

    with own_kafka(options.home) as kafka:
        figures = measure_growth(
            sizes=sizes, seed=options.seed, kafka=kafka, on_progress=progress, chosen=frozenset(chosen)
        )
    report(figures, options)


if __name__ == "__main__":
    run(growth)
