"""Follows one run and shows how it goes: the part that `rollog up` and `rollog watch` share."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumers.progress import RunProgress
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import BrokerError, BrokerRefused, BrokerTimeout
from rollog.kernel.logs import configure_logging, get_logger
from rollog.run.display import display_for
from rollog.run.view import RunFacts
from schemas import RunRole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from threading import Event

    from consumers.progress import ProgressView
    from rollog.kernel.broker.ports import Broker
    from rollog.run.display import Display
    from rollog.run.supervisor import SupervisedRole
    from rollog.settings.settings import Settings

log = get_logger("watch")

tick_seconds = 0.25
_read_seconds = 30.0
_kinds = {RunRole.TRAINER: "train", RunRole.DISPATCHER: "dispatch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How watching ended. `exit_status` is 0 when the run is over."""

    view: ProgressView
    exit_status: int


@contextmanager
def watcher_of(
    settings: Settings,
    broker: Broker,
    *,
    home: Path,
    is_terminal: bool,
    roles: Sequence[SupervisedRole] = (),
    display: Callable[[RunFacts], Display] | None = None,
) -> Iterator[Watcher]:
    """A watcher of a run, which shows `roles` too where this process runs them, on a `display` of its own if named."""
    facts = RunFacts(
        run=settings.run_name,
        num_steps=settings.run.num_steps,
        broker=broker.address,
        state_directory=str(home),
    )
    with ExitStack() as open_parts:
        progress = open_parts.enter_context(
            RunProgress(
                broker,
                RunTopics(settings.run.prefix, settings.run_name),
                log_here=lambda role: _log_of(roles, role),
                num_seats=settings.environment.seats,
            )
        )
        shown = open_parts.enter_context(
            display_for(
                facts,
                settings.evaluation.num_prompts * settings.environment.seats,
                is_terminal=is_terminal,
            )
            if display is None
            else display(facts)
        )
        yield Watcher(progress, shown, roles)


def _log_of(roles: Sequence[SupervisedRole], wanted: RunRole) -> Path | None:
    """The log of a role whose process lives here; None where none does."""
    kind = _kinds[wanted]
    living = (role for role in roles if role.child is not None and role.child.poll() is None)
    return next((role.spec.log_path for role in living if role.spec.kind == kind), None)


@contextmanager
def logging_beside(log_path: Path, *, is_terminal: bool) -> Iterator[None]:
    """Log into a file while the terminal shows the picture, else to standard error."""
    with log_path.open("a") if is_terminal else nullcontext(sys.stderr) as stream:
        configure_logging(stream=stream)
        yield


class Watcher:
    """Reads how a run is going and feeds the display. A broker that is away is waited for."""

    def __init__(self, progress: RunProgress, display: Display, roles: Sequence[SupervisedRole] = ()) -> None:
        self._progress = progress
        self._display = display
        self._roles = roles
        self._begin = time.monotonic()
        self.view = progress.poll()

    def run(self, stop: Event) -> ProgressView:
        """Watch until the ledger is closed or `stop` is set."""
        self.catch_up()
        while not self.view.is_closed and not stop.wait(tick_seconds):
            self.run_once()
        return self.catch_up()

    def run_once(self) -> None:
        """Take in what has arrived and show it. Raises BrokerRefused where the broker does not let this client in."""
        try:
            self.view = self._progress.poll()
        except BrokerRefused:
            raise  # asking again does not help
        except BrokerTimeout:
            # Its words are for who writes: whoever only watches has nothing to recover.
            log.warning("the broker did not answer in time; watching goes on")
        except BrokerError as error:
            log.warning("the run's progress could not be read; watching goes on", error=error)
        self._show()

    def tell(self, text: str) -> None:
        """Say something beside the picture."""
        self._display.tell(text)

    def catch_up(self) -> ProgressView:
        """Take in everything that is stored now and show it."""
        try:
            self.view = self._progress.read_to_end(_read_seconds)
        except BrokerError as error:
            log.warning("the newest records could not be read", error=error)
        self._show()
        return self.view

    def _show(self) -> None:
        self._display.show(self.view, self._roles, time.monotonic() - self._begin)
