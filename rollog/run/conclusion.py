"""The end of a command that watched a run: its summary, on the terminal and as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rollog.kernel.addresses import public_address
from rollog.kernel.broker.embedded_jars import kafka_version
from rollog.kernel.errors import BrokerError
from rollog.run.summary import summarize, summary_lines, write_summary

if TYPE_CHECKING:
    from pathlib import Path

    from consumers.progress import ProgressView
    from rollog.kernel.broker.embedded import EmbeddedKafka
    from rollog.kernel.broker.ports import Broker
    from rollog.settings.settings import Settings


def conclude(
    view: ProgressView,
    settings: Settings,
    directory: Path,
    *,
    kafka_version: str,
    up_seconds: float | None = None,
) -> None:
    """Write and print the figures of a run as it is now."""
    summary = summarize(settings, view, kafka_version=kafka_version, up_seconds=up_seconds)
    path = write_summary(summary, directory)
    for line in summary_lines(summary):
        click.echo(line)
    if not view.is_closed:
        click.echo("the run is not over: its log and weights are kept", err=True)
    click.echo(f"summary {path}; weights {public_address(settings.weights.uri or '')}")
    if view.version >= 0:
        click.echo(
            f"model: `rollog export {settings.run_name} --model DIR` writes it for transformers and vLLM"
        )


def version_of(broker: Broker, kafka: EmbeddedKafka | None = None) -> str:
    """Version of Apache Kafka: exact of an embedded one, else as far as the broker tells."""
    if kafka is not None:
        return kafka_version
    try:
        with broker.admin() as admin:
            return admin.broker_version()
    except BrokerError:
        return "unknown"
