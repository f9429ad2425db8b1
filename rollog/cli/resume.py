"""`rollog resume`: go on with a run that exists, on this machine, with changed settings where they may change."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from rollog.cli.options import common_options, plain_option, recorded_run, workers_option

if TYPE_CHECKING:
    from rollog.run.request import RunRequest


@click.command()
@workers_option
@plain_option
@common_options
@recorded_run
def resume(options: RunRequest, num_workers: int, plain: bool) -> int:
    """Go on with a run after any stop, and end when it is over.

    Starts what `rollog up` starts, on the run's log, weights and checkpoints. Nothing that was finished is made again.

    What --set and --config say otherwise than the run's settings is changed from the next step on, and recorded in
    the ledger: settings of [algorithm] and [optimizer], most of [trainer], alpha and run.num_steps. Anything else
    belongs to the run and is refused by name, but for what may differ from machine to machine: [metrics], [rollout],
    addresses and paths.
    """
    from rollog.run.conclusion import conclude, version_of  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.connection import embedded_unless_named  # noqa: PLC0415
    from rollog.run.joining import join_run  # noqa: PLC0415
    from rollog.run.local_run import run_here  # noqa: PLC0415
    from rollog.run.preparation import say  # noqa: PLC0415
    from rollog.run.resuming import changes_of, resumption  # noqa: PLC0415
    from rollog.settings.changes import shown  # noqa: PLC0415

    begin = time.monotonic()
    is_terminal = sys.stdout.isatty() and not plain
    resumed = resumption(options)
    local = resumed.here.local_layers().settings()
    with embedded_unless_named(local.broker, options.home, say, has_runs=True) as kafka:
        run = join_run(resumed.here, wait_seconds=0.0)
        changes = changes_of(run, resumed)
        if changes:
            click.echo(f"changed from the next step on: {shown(changes)}")
        outcome = run_here(
            run.settings,
            run.broker,
            kafka,
            home=options.home,
            num_workers=num_workers,
            is_terminal=is_terminal,
            flags=resumed.role_flags(changes),
        )
        version = version_of(run.broker, kafka)
    conclude(
        outcome.view,
        run.settings,
        options,
        kafka_version=version,
        up_seconds=time.monotonic() - begin,
    )
    return outcome.exit_status
