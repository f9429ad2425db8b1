"""`rollog doctor`: what is missing on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rollog.cli.options import common_options

if TYPE_CHECKING:
    from rollog.run.request import RunRequest


@click.command()
@common_options
def doctor(options: RunRequest) -> int:
    """Check Python, packages, Java, ports, disk, memory, GPUs and the broker; exit status 1 if something is missing.

    With --config also what `rollog up` looks at before a run: model, data, prompts, reward function, stores, and
    whether memory and disk have room for that model.
    """
    from rollog.run.machine_check import look  # noqa: PLC0415  # help needs no Kafka

    failed = False
    for finding in look(options):
        good = finding.remedy is None
        mark, colour = ("ok", "green") if good else ("missing", "red" if finding.is_needed else "yellow")
        click.echo(f"{click.style(f'{mark:8}', fg=colour)} {finding.what}: {finding.found}")
        if finding.remedy is not None:
            click.echo(f"         {finding.remedy}")
        failed = failed or (not good and finding.is_needed)
    return int(failed)
