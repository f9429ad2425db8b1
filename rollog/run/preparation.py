"""Tells how far preparations are, before there is a run to show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

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
