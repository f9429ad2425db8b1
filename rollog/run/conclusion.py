"""The end of a command that watched a run: its summary, on the terminal and as a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollog.kernel.addresses import public_address
from rollog.kernel.broker.embedded_jars import kafka_version
from rollog.kernel.called import called_as
from rollog.kernel.errors import BrokerError
from rollog.kernel.printable import printable
from rollog.run.local_run import run_directory
from rollog.run.summary import summarize, write_summary
from rollog.run.summary_words import next_commands, summary_lines

if TYPE_CHECKING:
    from consumers.progress import ProgressView
    from rollog.kernel.broker.embedded import EmbeddedKafka
    from rollog.kernel.broker.ports import Broker
    from rollog.run.request import RunRequest
    from rollog.settings.settings import Settings


def conclude(
    view: ProgressView,
    settings: Settings,
    options: RunRequest,
    *,
    kafka_version: str,
    up_seconds: float | None = None,
) -> None:
    """Write and print the figures of a run as it is now, and what can be done next."""
    summary = summarize(settings, view, kafka_version=kafka_version, up_seconds=up_seconds)
    path = write_summary(summary, run_directory(settings, options.home))
    click.echo("\n".join(["", *map(printable, summary_lines(summary)), ""]))
    click.echo(f"all figures: {path}\nweights: {public_address(settings.weights.uri or '')}")
    commands = next_commands(
        options,
        settings,
        has_model=view.version >= 0,
        is_over=view.is_closed,
        program=called_as(sys.argv[0], Path.cwd()),
    )
    if commands:
        click.echo("\n".join(["next:", *commands]))


def version_of(broker: Broker, kafka: EmbeddedKafka | None = None) -> str:
    """Version of Apache Kafka: exact of an embedded one, else as far as the broker tells."""
    if kafka is not None:
        return kafka_version
    try:
        with broker.admin() as admin:
            return admin.broker_version()
    except BrokerError:
        return "unknown"
