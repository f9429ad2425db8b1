"""`rollog up`: a whole run on this machine."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from rollog.cli.options import common_options, plain_option, preflight_option, workers_option

if TYPE_CHECKING:
    from rollog.run.request import RunRequest


@click.command()
@workers_option
@plain_option
@preflight_option
@common_options
def up(options: RunRequest, num_workers: int, plain: bool, preflight: bool) -> int:
    """Do a whole run on this machine and end when it is over.

    Starts Apache Kafka (unless --broker names one or one runs for this --home), a dispatcher, rollout workers and a
    trainer as child processes, and restarts those that die. Without --config it makes a small model and trains it
    on a small verifiable task, offline, in a few minutes.

    Ctrl-C stops everything gracefully; a second one at once. The log, the weights and summary.json stay in --home,
    and `rollog resume RUN` goes on with them.
    """
    from rollog.run.conclusion import conclude, version_of  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.connection import connect, embedded_unless_named  # noqa: PLC0415
    from rollog.run.creation import complete, create_run, refuse_taken_name  # noqa: PLC0415
    from rollog.run.local_run import run_here  # noqa: PLC0415
    from rollog.run.placement import placed_here  # noqa: PLC0415
    from rollog.run.preflight import refuse_what_cannot_run  # noqa: PLC0415
    from rollog.run.preparation import report_preparation, say, warn  # noqa: PLC0415

    begin = time.monotonic()
    is_terminal = sys.stdout.isatty() and not plain
    settings = options.settings()
    if preflight:
        placed_here(settings, num_workers)
        say("looking at model, data, reward function and stores")
        refuse_what_cannot_run(settings, options.home, warn)
    with embedded_unless_named(settings.broker, options.home, say) as kafka:
        broker = connect(settings.broker, options.home)
        refuse_taken_name(broker, settings)
        settings = complete(settings, options.home, report_preparation())
        create_run(broker, settings)
        outcome = run_here(
            settings, broker, kafka, home=options.home, num_workers=num_workers, is_terminal=is_terminal
        )
        version = version_of(broker, kafka)
    up_seconds = time.monotonic() - begin
    conclude(outcome.view, settings, options, kafka_version=version, up_seconds=up_seconds)
    return outcome.exit_status
