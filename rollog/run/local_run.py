"""Supervises the roles of a run on this machine and watches it, until the run is over or somebody stops it."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rollog.kernel.disk_room import naming_full_disk, no_room
from rollog.kernel.errors import BrokerError, ChildFailed
from rollog.kernel.logs import get_logger
from rollog.kernel.machine import num_processors
from rollog.kernel.processes import exists
from rollog.kernel.signals import StopSignals
from rollog.run.connection import broker_at
from rollog.run.placement import placed_here
from rollog.run.restart_policy import Exit, Restart, RestartPolicy, decide
from rollog.run.supervisor import RoleSpec, Supervisor
from rollog.run.supervisor_lock import sole_supervisor
from rollog.run.watching import Outcome, logging_beside, tick_seconds, watcher_of
from rollog.settings.security import security_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker
    from rollog.run.display import Display
    from rollog.run.placement import Placement
    from rollog.run.view import RunFacts
    from rollog.run.watching import Watcher
    from rollog.settings.settings import Settings

    Placed = tuple[Placement, Sequence[str]]

log = get_logger("up")

_seconds_to_end = 60.0
_seconds_to_end_a_start = 3.0
_watching_seconds = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFlags:
    """What the roles are told besides their run: all of them, and the trainer alone. `environment` is all roles'."""

    common: tuple[str, ...] = ()
    trainer: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def role_specs(
    settings: Settings,
    address: str,
    home: Path,
    logs: Path,
    num_workers: int,
    *,
    flags: RoleFlags = RoleFlags(),
) -> list[RoleSpec]:
    """Dispatcher, rollout workers and trainer of a run, in the order in which they are stopped.

    Raises ConfigError where this machine has GPUs, and too few for them.
    """
    threads = _shared_threads(settings, num_workers)
    placed = placed_here(settings, num_workers)
    # Places of secrets only; a command line would be seen by everybody on the machine.
    secured = security_variables(settings.broker.security)
    workers = [(f"rollout-{number}", "rollout", 2 + number) for number in range(num_workers)]
    return [
        RoleSpec(
            name=name,
            kind=kind,
            command=(
                *(sys.executable, "-m", "rollog.cli.main", kind),
                *("--run", settings.run_name, "--broker", address, "--home", str(home)),
                *("--set", f"run.prefix={settings.run.prefix}"),
                *flags.common,
                *(("--name", name, *threads) if kind == "rollout" else ()),
                *_memory_share(settings, placed, kind, index),
                *(flags.trainer if kind == "train" else ()),
                *_metrics_port(settings.metrics.port, index),
            ),
            log_path=logs / f"{name}.log",
            environment={**flags.environment, **secured, **_devices(placed, kind, index)},
        )
        for name, kind, index in (("dispatcher", "dispatch", 0), *workers, ("trainer", "train", 1))
    ]


def run_here(
    settings: Settings,
    broker: Broker,
    kafka: Restartable | None,
    *,
    home: Path,
    num_workers: int,
    is_terminal: bool,
    flags: RoleFlags = RoleFlags(),
    display: Callable[[RunFacts], Display] | None = None,
) -> Outcome:
    """Run every role of a run on this machine to its end.

    `display` makes what is shown in place of picture or lines; logs go to the file beside it then.
    Raises ChildFailed when one that is needed was given up, ConfigError where another process does so already, DiskFull
    where there is no room for what it writes.
    """
    directory = run_directory(settings, home)
    with naming_full_disk(directory), sole_supervisor(directory, settings.run_name):
        specs = role_specs(settings, broker.address, home, directory / "logs", num_workers, flags=flags)
        policy = RestartPolicy(**settings.supervision.model_dump())
        # Whoever waits for a broker that is away does not see meanwhile that it has to be started again.
        watched = broker_at(broker.address, settings.broker, offsets_timeout_seconds=_watching_seconds)
        supervisor = Supervisor(specs, policy=policy)
        with (
            logging_beside(directory / "up.log", is_terminal=is_terminal or display is not None),
            StopSignals(num_graceful=3) as signals,
            supervisor,
            watcher_of(
                settings,
                watched,
                home=home,
                is_terminal=is_terminal,
                roles=supervisor.roles,
                display=display,
            ) as watcher,
        ):
            watcher.tell(
                f"run {settings.run_name} on Apache Kafka at {broker.address}; logs in {directory / 'logs'}"
            )
            return Supervision(supervisor, watcher, signals, BrokerKeeper(kafka, policy)).run()


def run_directory(settings: Settings, home: Path) -> Path:
    """Where a run keeps its logs, checkpoints and summary."""
    return (home / "runs" / settings.run_name).resolve()


class Supervision:
    """Turns the supervisor and the watcher, notices the end."""

    def __init__(
        self, supervisor: Supervisor, watcher: Watcher, signals: StopSignals, broker: BrokerKeeper
    ) -> None:
        self._supervisor = supervisor
        self._watcher = watcher
        self._signals = signals
        self._broker = broker
        self._closed_at: float | None = None

    def run(self) -> Outcome:
        """Go on until every role has ended, the roles of a closed run took too long, or a signal came."""
        try:
            if not self._signals.stop.is_set():
                self._supervisor.start()
            while not self._is_over() and not self._signals.stop.wait(tick_seconds):
                self.run_once()
        finally:
            if self._signals.received:
                self._watcher.tell("stopping; Ctrl-C again ends everything at once")
            self._supervisor.stop(
                hurry=lambda: self._signals.in_a_hurry,
                # Before the first version nothing was made that could be finished.
                at_once_within_seconds=_seconds_to_end_a_start if self._watcher.view.version < 0 else None,
            )
        view = self._watcher.catch_up()
        return Outcome(view=view, exit_status=0 if view.is_closed else self._signals.exit_status or 1)

    def run_once(self) -> None:
        """Look after broker and roles once, and show how things are."""
        self._broker.run_once()
        try:
            self._supervisor.run_once()
        except ChildFailed as error:
            if not self._watcher.view.is_closed:
                raise
            log.warning("role failed after the end of the run", error=error)
        self._watcher.run_once()
        if self._watcher.view.is_closed and self._closed_at is None:
            self._closed_at = time.monotonic()

    def _is_over(self) -> bool:
        if self._supervisor.is_finished:
            return True
        return self._closed_at is not None and time.monotonic() > self._closed_at + _seconds_to_end


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
        self._failure: BrokerError | None = None
        """Why the last start came to nothing."""

    def run_once(self) -> None:
        """Look once. Raises ChildFailed when restarts do not help any more."""
        if self._kafka is None or (self._failure is None and exists(self._kafka.pid)):
            return
        self._exits.append(Exit(status=1, at_seconds=time.monotonic()))
        if not isinstance(decide(self._policy, self._exits), Restart):
            if self._failure is not None:
                raise self._gives_up(self._failure)
            raise ChildFailed(f"the embedded broker keeps ending; see {self._kafka.log_path}")
        reason = no_room(self._kafka.log_path.parent)
        log.warning(
            "embedded broker restarts", log=self._kafka.log_path, **({"reason": reason} if reason else {})
        )
        self._failure = None
        try:
            self._kafka.restart()
        except BrokerError as error:
            if no_room(self._kafka.log_path.parent):
                # It cannot come back while that is so, however often it is started.
                raise self._gives_up(error) from error
            # Killed while it started, perhaps: one more end, and the next look starts it again.
            self._failure = error

    def _gives_up(self, error: BrokerError) -> ChildFailed:
        return ChildFailed(f"the embedded broker does not start again: {error}")


def _devices(placed: Placed | None, kind: str, index: int) -> dict[str, str]:
    """What shows a role the devices that it has, and the dispatcher none."""
    if placed is None:
        return {}
    placement, names = placed
    devices = {"train": placement.trainer, "rollout": placement.workers[max(0, index - 2)]}.get(kind, ())
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[device] for device in devices)}


def _memory_share(settings: Settings, placed: Placed | None, kind: str, index: int) -> tuple[str, ...]:
    is_chosen = settings.rollout.gpu_memory_share or "gpu_memory_utilization" in settings.rollout.engine_args
    if placed is None or kind != "rollout" or is_chosen:
        return ()
    share = placed[0].memory_shares[index - 2]
    return () if share is None else ("--set", f"rollout.gpu_memory_share={share}")


def _shared_threads(settings: Settings, num_workers: int) -> tuple[str, ...]:
    """What tells workers that they share half of the processors; nothing where a setting says how many each has."""
    if num_workers == 1 or settings.rollout.num_threads is not None:
        return ()
    return ("--set", f"rollout.num_threads={max(1, num_processors() // 2 // num_workers)}")


def _metrics_port(first: int | None, index: int) -> tuple[str, ...]:
    if first is None:
        return ()
    return ("--metrics-port", str(first + index if first else 0))
