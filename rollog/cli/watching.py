"""Supervises the roles of a run on this machine and shows how it goes, until the run is over or somebody stops it."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from consumers.progress import RunProgress
from rollog.broker.topics import RunTopics
from rollog.cli.display import display_for
from rollog.cli.signals import StopSignals
from rollog.cli.view import RunFacts
from rollog.errors import BrokerError, ChildFailed
from rollog.logs import get_logger
from rollog.processes import exists
from rollog.supervision.policy import Exit, Restart, RestartPolicy, decide
from rollog.supervisor import RoleSpec, Supervisor

if TYPE_CHECKING:
    from pathlib import Path

    from consumers.progress import ProgressView
    from rollog.broker.ports import Broker
    from rollog.cli.display import Display
    from rollog.cli.settings import Settings

log = get_logger("up")

_tick_seconds = 0.25
_seconds_to_end = 60.0
_read_seconds = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How watching ended. `exit_status` is 0 when the run is over."""

    view: ProgressView
    exit_status: int
    generating_seconds: float


def role_specs(settings: Settings, address: str, home: Path, logs: Path, num_workers: int) -> list[RoleSpec]:
    """Dispatcher, rollout workers and trainer of a run, in the order in which they are stopped."""
    workers = [(f"rollout-{number}", "rollout", 2 + number) for number in range(num_workers)]
    return [
        RoleSpec(
            name=name,
            kind=kind,
            command=(
                *(sys.executable, "-m", "rollog.cli.main", kind),
                *("--run", settings.run_name, "--broker", address, "--home", str(home)),
                *("--set", f"run.prefix={settings.run.prefix}"),
                *(("--name", name) if kind == "rollout" else ()),
                *_metrics_port(settings.metrics.port, index),
            ),
            log_path=logs / f"{name}.log",
        )
        for name, kind, index in (("dispatcher", "dispatch", 0), *workers, ("trainer", "train", 1))
    ]


def watch(
    settings: Settings,
    broker: Broker,
    kafka: Restartable | None,
    *,
    home: Path,
    directory: Path,
    num_workers: int,
    is_terminal: bool,
) -> Outcome:
    """Run everything to its end. Raises ChildFailed when a role that is needed was given up."""
    facts = RunFacts(
        run=settings.run_name,
        num_steps=settings.run.num_steps,
        broker=broker.address,
        state_directory=str(home),
    )
    specs = role_specs(settings, broker.address, home, directory / "logs", num_workers)
    with ExitStack() as open_parts:
        progress = open_parts.enter_context(
            RunProgress(broker, RunTopics(settings.run.prefix, settings.run_name))
        )
        signals = open_parts.enter_context(StopSignals(patience=3))
        supervisor = open_parts.enter_context(Supervisor(specs))
        display = open_parts.enter_context(
            display_for(facts, settings.evaluation.num_prompts, is_terminal=is_terminal)
        )
        watcher = Watcher(supervisor, progress, display, signals, BrokerKeeper(kafka))
        return watcher.run()


class Watcher:
    """Turns the supervisor, feeds the display, notices the end."""

    def __init__(
        self,
        supervisor: Supervisor,
        progress: RunProgress,
        display: Display,
        signals: StopSignals,
        broker: BrokerKeeper,
    ) -> None:
        self._supervisor = supervisor
        self._progress = progress
        self._display = display
        self._signals = signals
        self._broker = broker
        self._view = progress.poll()
        self._begin = time.monotonic()
        self._generating_since: float | None = None
        self._closed_at: float | None = None

    def run(self) -> Outcome:
        """Watch until every role has ended, the roles of a closed run took too long, or a signal came."""
        self._supervisor.start()
        try:
            while not self._is_over() and not self._signals.stop.wait(_tick_seconds):
                self.run_once()
        finally:
            self._supervisor.stop(hurry=lambda: self._signals.in_a_hurry)
        return self._outcome()

    def run_once(self) -> None:
        """Look after broker and roles once, and show how things are."""
        self._broker.run_once()
        try:
            self._supervisor.run_once()
        except ChildFailed as error:
            if not self._view.is_closed:
                raise
            log.warning("role failed after the end of the run", error=error)
        try:
            self._view = self._progress.poll()
        except BrokerError as error:
            log.warning("progress unknown", error=error)
        self._note_times()
        self._display.show(self._view, self._supervisor.roles, time.monotonic() - self._begin)

    def _note_times(self) -> None:
        now = time.monotonic()
        if self._view.tokens_generated and self._generating_since is None:
            self._generating_since = now
        if self._view.is_closed and self._closed_at is None:
            self._closed_at = now

    def _is_over(self) -> bool:
        if self._supervisor.is_finished:
            return True
        return self._closed_at is not None and time.monotonic() > self._closed_at + _seconds_to_end

    def _outcome(self) -> Outcome:
        try:
            self._view = self._progress.read_to_end(_read_seconds)
        except BrokerError as error:
            log.warning("the newest records could not be read", error=error)
        self._note_times()
        self._display.show(self._view, self._supervisor.roles, time.monotonic() - self._begin)
        end = self._closed_at or time.monotonic()
        return Outcome(
            view=self._view,
            exit_status=0 if self._view.is_closed else self._signals.exit_status or 1,
            generating_seconds=0.0 if self._generating_since is None else end - self._generating_since,
        )


class Restartable(Protocol):
    """A broker of our own that can be started again."""

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    @property
    def log_path(self) -> Path:
        """What it has to say."""
        ...

    def restart(self) -> None:
        """Start again on the same data and address."""
        ...


class BrokerKeeper:
    """Starts the embedded broker again, on the same data and address, when its process is gone."""

    def __init__(self, kafka: Restartable | None, policy: RestartPolicy | None = None) -> None:
        self._kafka = kafka
        self._policy = policy or RestartPolicy()
        self._exits: list[Exit] = []

    def run_once(self) -> None:
        """Look once. Raises ChildFailed when restarts do not help any more."""
        if self._kafka is None or exists(self._kafka.pid):
            return
        self._exits.append(Exit(status=1, at_seconds=time.monotonic()))
        if not isinstance(decide(self._policy, self._exits), Restart):
            raise ChildFailed(f"the embedded broker keeps ending; see {self._kafka.log_path}")
        log.warning("embedded broker restarts", log=self._kafka.log_path)
        self._kafka.restart()


def _metrics_port(first: int | None, index: int) -> tuple[str, ...]:
    if first is None:
        return ()
    return ("--metrics-port", str(first + index if first else 0))
