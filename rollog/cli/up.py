"""`rollog up`: a whole run on this machine."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from rollog.cli.options import CommonOptions, common_options
from rollog.errors import BrokerError
from rollog.logs import configure_logging

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import TextIO

    from rollog.broker.embedded import EmbeddedKafka
    from rollog.broker.ports import Broker
    from rollog.cli.settings import Settings
    from rollog.cli.watching import Outcome


@click.command()
@click.option(
    "--workers",
    "num_workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Rollout worker processes to run here.",
)
@click.option("--plain", is_flag=True, help="One line per step instead of the live picture.")
@common_options
def up(options: CommonOptions, num_workers: int, plain: bool) -> int:
    """Do a whole run on this machine and end when it is over.

    Starts Apache Kafka (unless --broker names one or one runs for this --home), a dispatcher, rollout workers and a
    trainer as child processes, and restarts those that die. Without --config it makes a small model and trains it
    on a small verifiable task, offline, in a few minutes.

    Ctrl-C stops everything gracefully; a second one at once. The log, the weights and summary.json stay in --home.
    """
    from rollog.cli.connection import connect, embedded_unless_named  # noqa: PLC0415  # help needs no Kafka
    from rollog.cli.creation import complete, create_run, refuse_taken_name  # noqa: PLC0415
    from rollog.cli.preparation import report_preparation  # noqa: PLC0415
    from rollog.cli.settings import check_files  # noqa: PLC0415
    from rollog.cli.watching import watch  # noqa: PLC0415

    begin = time.monotonic()
    is_terminal = sys.stdout.isatty() and not plain
    settings = options.settings()
    check_files(settings)
    with embedded_unless_named(settings.broker, options.home) as kafka:
        broker = connect(settings.broker, options.home)
        refuse_taken_name(broker, settings)
        settings = complete(settings, options.home, report_preparation())
        directory = (options.home / "runs" / settings.run_name).resolve()
        create_run(broker, settings)
        directory.mkdir(parents=True, exist_ok=True)
        _announce(settings, broker, directory)
        with _log_stream(directory, is_terminal=is_terminal) as stream:
            configure_logging(stream=stream)
            outcome = watch(
                settings,
                broker,
                kafka,
                home=options.home,
                directory=directory,
                num_workers=num_workers,
                is_terminal=is_terminal,
            )
        version = _kafka_version(broker, kafka)
    return _conclude(outcome, settings, directory, time.monotonic() - begin, version)


def _announce(settings: Settings, broker: Broker, directory: Path) -> None:
    click.echo(f"run {settings.run_name} on Apache Kafka at {broker.address}; logs in {directory / 'logs'}")


def _log_stream(directory: Path, *, is_terminal: bool) -> AbstractContextManager[TextIO]:
    """Where the supervisor logs: into a file while the terminal shows the picture."""
    return (directory / "up.log").open("a") if is_terminal else nullcontext(sys.stderr)


def _kafka_version(broker: Broker, kafka: EmbeddedKafka | None) -> str:
    from rollog.broker.embedded_jars import kafka_version  # noqa: PLC0415

    if kafka is not None:
        return kafka_version
    try:
        with broker.admin() as admin:
            return admin.broker_version()
    except BrokerError:
        return "unknown"


def _conclude(
    outcome: Outcome, settings: Settings, directory: Path, wall_seconds: float, kafka_version: str
) -> int:
    from rollog.cli.summary import summarize, summary_lines, write_summary  # noqa: PLC0415

    summary = summarize(
        settings,
        outcome.view,
        wall_seconds=wall_seconds,
        generating_seconds=outcome.generating_seconds,
        kafka_version=kafka_version,
    )
    path = write_summary(summary, directory)
    for line in summary_lines(summary):
        click.echo(line)
    if not outcome.view.is_closed:
        click.echo("the run is not over: its log and weights are kept", err=True)
    click.echo(f"summary {path}; logs {directory / 'logs'}; weights {settings.weights.uri}")
    return outcome.exit_status
