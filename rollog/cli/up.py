"""`rollog up`: a whole run on this machine."""

from __future__ import annotations

import sys
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
    from rollog.run.conclusion import conclude  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.preparation import report_preparation, say, warn  # noqa: PLC0415
    from rollog.run.whole_run import Audience, whole_run  # noqa: PLC0415

    ended = whole_run(
        options.settings(),
        options.home,
        num_workers=num_workers,
        audience=Audience(say=say, warn=warn, report=report_preparation()),
        has_preflight=preflight,
        is_terminal=sys.stdout.isatty() and not plain,
    )
    conclude(
        ended.view, ended.settings, options, kafka_version=ended.kafka_version, up_seconds=ended.up_seconds
    )
    return ended.exit_status
