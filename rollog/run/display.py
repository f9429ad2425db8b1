"""Shows how a run goes: a live picture on a terminal, one line per step elsewhere."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Self

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from rollog.kernel.lifecycle import Component
from rollog.kernel.printable import printable, printable_lines
from rollog.rules.standing_still import Teller, Told
from rollog.run.view import (
    evaluation_line,
    failure_lines,
    phase_lines,
    picture,
    standing_line,
    step_line,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumers.progress import ProgressView
    from rollog.run.supervisor import SupervisedRole
    from rollog.run.view import RunFacts


class Display(Component):
    """Where progress is shown, from entering to closing."""

    @abstractmethod
    def show(self, view: ProgressView, roles: Sequence[SupervisedRole], seconds: float) -> None:
        """Show the newest state."""

    @abstractmethod
    def tell(self, text: str) -> None:
        """Say something once, so that it stays readable."""


class Lines(Display):
    """Prints one line per finished step and per evaluation, and what is waited for as it begins and every minute.

    What rollouts fail with is printed when something new comes up, and what roles do before they can work.
    """

    def __init__(self, facts: RunFacts, num_evaluated: int) -> None:
        self._facts = facts
        self._num_evaluated = num_evaluated
        self._num_steps = 0
        self._teller = Teller()
        self._evaluations: set[tuple[str, int]] = set()
        self._failures: set[str] = set()
        self._phases: list[str] = []

    def close(self) -> None:
        """There is nothing to restore."""

    def show(self, view: ProgressView, roles: Sequence[SupervisedRole], seconds: float) -> None:
        """Print what is new."""
        del roles
        phases = phase_lines(view)
        for line in phases:
            if line not in self._phases:
                click.echo(line)
        self._phases = phases
        for step in range(self._num_steps + 1, len(view.step_timings) + 1):
            click.echo(printable(step_line(self._facts, view, step)))
        self._num_steps = len(view.step_timings)
        for key, score in view.held_out.items():
            is_whole = score.num_rollouts >= self._num_evaluated or view.is_closed
            if is_whole and key not in self._evaluations:
                self._evaluations.add(key)
                click.echo(printable(evaluation_line(*key, score)))
        if not view.failures.keys() <= self._failures:
            self._failures |= view.failures.keys()
            click.echo("\n".join(failure_lines(view)))
        self._show_standing(view, seconds)

    def _show_standing(self, view: ProgressView, seconds: float) -> None:
        told = self._teller.due(view.standing_still != "", seconds)
        if told is not None:
            click.echo(printable(standing_line(view) if told is Told.STANDS_STILL else told.value))

    def tell(self, text: str) -> None:
        """Print a line."""
        click.echo(printable_lines(text))


class Picture(Display):
    """Redraws the picture in place."""

    def __init__(self, facts: RunFacts, console: Console | None = None) -> None:
        self._facts = facts
        self._live = Live(console=console or Console(stderr=False), auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def close(self) -> None:
        """Leave the newest picture where it is."""
        self._live.stop()

    def show(self, view: ProgressView, roles: Sequence[SupervisedRole], seconds: float) -> None:
        """Redraw."""
        self._live.update(picture(self._facts, view, roles, seconds), refresh=True)

    def tell(self, text: str) -> None:
        """Print a line above the picture."""
        self._live.console.print(Text(printable_lines(text)))


def display_for(facts: RunFacts, num_evaluated: int, *, is_terminal: bool) -> Display:
    """The picture on a terminal, lines elsewhere: of an evaluation when all its `num_evaluated` rollouts are there."""
    return Picture(facts) if is_terminal else Lines(facts, num_evaluated)
