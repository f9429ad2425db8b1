"""`rollog up`: a whole run on this machine."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from rollog.cli.options import CommonOptions, common_options
from rollog.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rollog.broker.ports import Broker
    from rollog.cli.settings import Settings
    from rollog.cli.watching import Outcome
    from rollog.cli.view import RunFacts


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
    from rollog.cli.creation import complete, create_run  # noqa: PLC0415
    from rollog.cli.watching import watch  # noqa: PLC0415

    begin = time.monotonic()
    settings = complete(options.settings(), options.home, _reporter())
    directory = (options.home / "runs" / settings.run_name).resolve()
    with ExitStack() as open_parts:
        kafka = open_parts.enter_context(embedded_unless_named(settings.broker, options.home))
        broker = connect(settings.broker, options.home)
        create_run(broker, settings)
        directory.mkdir(parents=True, exist_ok=True)
        is_terminal = sys.stdout.isatty() and not plain
        _configure_logging(open_parts, directory if is_terminal else None)
        _announce(settings, broker, directory)
        outcome = watch(
            settings,
            broker,
            kafka,
            home=options.home,
            directory=directory,
            num_workers=num_workers,
            is_terminal=is_terminal,
            begin_seconds=begin,
        )
        return _conclude(outcome, settings, broker, directory, begin)
