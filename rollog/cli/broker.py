"""`rollog broker`: the embedded Apache Kafka in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rollog.cli.options import home_option
from rollog.kernel.errors import BrokerError
from rollog.kernel.logs import configure_logging
from rollog.kernel.processes import exists

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@home_option
@click.option("--port", type=click.IntRange(1, 65535), help="Port on 127.0.0.1; any free one without it.")
def broker(home: Path, port: int | None) -> int:
    """Run the embedded Apache Kafka until Ctrl-C.

    Its data stay in HOME/kafka; `rollog up` and the role commands with the same --home find it by themselves.
    """
    from rollog.kernel.broker.embedded import EmbeddedKafka  # noqa: PLC0415  # help needs no Kafka
    from rollog.kernel.signals import StopSignals  # noqa: PLC0415
    from rollog.run.connection import cache_directory, data_directory  # noqa: PLC0415
    from rollog.run.preparation import say  # noqa: PLC0415

    configure_logging()
    home = home.expanduser()
    with EmbeddedKafka(data_directory(home), cache_directory(home), port, tell=say) as kafka:
        click.echo(f"Apache Kafka at {kafka.address}, data in {data_directory(home)} (Ctrl-C stops it)")
        with StopSignals() as signals:
            while not signals.stop.wait(1.0):
                if not exists(kafka.pid):
                    raise BrokerError(f"the broker ended by itself; see {kafka.log_path}")
    return 0
