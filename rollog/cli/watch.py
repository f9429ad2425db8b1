"""`rollog watch`: how a run goes, wherever its roles run, and its summary when it is over."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from rollog.cli.options import CommonOptions, common_options, plain_option, wait_option
from rollog.logs import configure_logging, log_stream

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@plain_option
@wait_option
@common_options
def watch(options: CommonOptions, plain: bool, wait_seconds: float) -> int:
    """Show how a run goes until it is over, then print its figures and write summary.json.

    For runs whose roles were started one by one: the same picture as `rollog up` shows, of any run on the broker,
    from any machine, as often as wanted. A run that is over already is summed up at once.

    Consumes steps, evaluations and workers; produces HOME/runs/RUN/summary.json. Ctrl-C ends watching, not the run.
    """
    from rollog.cli.conclusion import conclude, version_of  # noqa: PLC0415  # help needs no Kafka
    from rollog.cli.joining import join_run  # noqa: PLC0415
    from rollog.cli.signals import StopSignals  # noqa: PLC0415
    from rollog.cli.watching import watcher_of  # noqa: PLC0415

    run = join_run(options, wait_seconds)
    settings, broker = run.settings, run.broker
    directory = options.home / "runs" / settings.run_name
    is_terminal = sys.stdout.isatty() and not plain
"""
"""
