"""`rollog watch`: how a run goes, wherever its roles run, and its summary when it is over."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from rollog.cli.options import common_options, plain_option, wait_option

if TYPE_CHECKING:
    from rollog.run.request import RunRequest


@click.command()
@plain_option
@wait_option
@common_options
def watch(options: RunRequest, plain: bool, wait_seconds: float) -> int:
    """Show how a run goes until it is over, then print its figures and write summary.json.

    For runs whose roles were started one by one: the same picture as `rollog up` shows, of any run on the broker,
    from any machine, as often as wanted. A run that is over already is summed up at once.

    Consumes steps, evaluations and workers; produces HOME/runs/RUN/summary.json. Ctrl-C ends watching, not the run.
    """
    from rollog.kernel.private_directory import make_private  # noqa: PLC0415
    from rollog.kernel.signals import StopSignals  # noqa: PLC0415
    from rollog.run.conclusion import conclude, version_of  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.joining import join_run  # noqa: PLC0415
    from rollog.run.watching import logging_beside, watcher_of  # noqa: PLC0415

    run = join_run(options, wait_seconds)
    settings, broker = run.settings, run.broker
    directory = (options.home / "runs" / settings.run_name).resolve()
    make_private(directory)
    is_terminal = sys.stdout.isatty() and not plain
    with (
        logging_beside(directory / "watch.log", is_terminal=is_terminal),
        StopSignals() as signals,
        watcher_of(settings, broker, home=options.home, is_terminal=is_terminal) as watcher,
    ):
        view = watcher.run(signals.stop)
    if not view.is_closed:
        click.echo(f"run {settings.run_name} goes on, or can; only watching it has ended", err=True)
        return signals.exit_status
    conclude(view, settings, options, kafka_version=version_of(broker))
    return 0
