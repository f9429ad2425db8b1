"""`python -m benchmarks.data_plane`: what samples cost on their way through the log, against raw kafka-python."""

from __future__ import annotations

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, report, run


@click.command("data_plane")
@count_option("--records", "num_records", 6000, "Samples of each round.")
@count_option("--rounds", "num_rounds", 7, "How often each way is timed, in turns, after one that is not.")
@bench_options
def data_plane(*, num_records: int, num_rounds: int, options: BenchOptions) -> None:
    """Measure the data plane: samples per second through the broker port, against raw kafka-python and fastavro."""
    from benchmarks.data_plane.measure import measure_data_plane
    from benchmarks.harness.own_kafka import own_kafka

    with own_kafka(options.home) as kafka:
        figures = measure_data_plane(num_records, num_rounds, options.seed, kafka)
    report(figures, options)


if __name__ == "__main__":
    run(data_plane)
