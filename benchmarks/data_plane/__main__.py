"""`python -m benchmarks.data_plane`: what samples cost on their way through the log, and by other ways."""

from __future__ import annotations

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, report, run


@click.command("data_plane")
@count_option("--records", "num_records", 6000, "Samples of each round.")
@count_option("--rounds", "num_rounds", 7, "How often each way is timed, in turns, after one that is not.")
@click.option(
    "--only",
    type=click.Choice(["port", "transports"]),
    help="port: the broker port against raw kafka-python; transports: every client, and what others use.",
)
@bench_options
def data_plane(*, num_records: int, num_rounds: int, only: str | None, options: BenchOptions) -> None:
    """Measure the data plane: samples per second through the broker port and by other ways, and what they cost."""
    from benchmarks.data_plane.measure import measure_data_plane
    from benchmarks.data_plane.transports import measure_transports
    from benchmarks.harness.own_kafka import own_kafka

    figures = []
    with own_kafka(options.home) as kafka:
        if only != "transports":
            figures += measure_data_plane(num_records, num_rounds, options.seed, kafka)
        if only != "port":
            figures += measure_transports(4 * num_records, num_rounds, options.seed, kafka)
    report(figures, options, libraries=("confluent_kafka", "fastavro", "zmq", "msgspec"))


if __name__ == "__main__":
    run(data_plane)
