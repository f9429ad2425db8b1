"""What is told before there is a run to show: how far preparations are, and what would hurt the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rollog.kernel.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable


def report_preparation() -> Callable[[str, float], None]:
    """A listener that prints what is being prepared, in steps of ten per cent, on standard error."""
    told: dict[str, int] = {}

    def report(what: str, fraction: float) -> None:
        tenth = int(fraction * 10)
        if told.get(what) != tenth:
            told[what] = tenth
            click.echo(f"preparing {what}: {tenth * 10} %", err=True)

    return report


def say(sentence: str) -> None:
    """Print what is done now on standard error."""
    click.echo(printable(sentence), err=True)


def warn(sentence: str) -> None:
    """Print a warning on standard error."""
    click.secho(f"warning: {printable(sentence)}", fg="yellow", err=True)
