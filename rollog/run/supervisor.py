"""Runs the roles of one machine as child processes until their run is over.

A role that dies is started again after a pause, at most so often in so long a time; one that was fenced or
that cannot work with its settings is not. `stop` ends them kind by kind: SIGTERM, a deadline, SIGKILL.
Children have process groups of their own, so that Ctrl-C reaches only the supervisor, and they die with it.
All methods are to be called from the thread that calls `start`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from rollog.kernel.disk_room import no_room
from rollog.kernel.errors import ChildFailed
from rollog.kernel.lifecycle import Component
from rollog.kernel.logs import get_logger
from rollog.kernel.printable import printable
from rollog.kernel.processes import ChildProcess
from rollog.run.restart_policy import (
    Done,
    Exit,
    GiveUp,
    Restart,
    RestartPolicy,
    decide,
    describe_status,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

log = get_logger("supervisor")

_log_line_characters = 2_000


class RoleState(StrEnum):
    """Where a supervised role is in its life."""

    NEW = "new"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    GIVEN_UP = "given up"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class RoleSpec:
    """One role to run. Roles of one `kind` can stand in for each other."""

    name: str
    kind: str
    command: tuple[str, ...]
    log_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class SupervisedRole:
    """A role, its process and its history."""

    spec: RoleSpec
    state: RoleState = RoleState.NEW
    child: ChildProcess | None = None
    exits: list[Exit] = field(default_factory=list)
    restart_at_seconds: float = 0.0
    num_restarts: int = 0
    reason: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether the role works or will again."""
        return self.state in {RoleState.RUNNING, RoleState.WAITING, RoleState.DONE}


class Supervisor(Component):
    """Keeps `roles` running; they are started, and stopped, in the order given."""

    def __init__(
        self,
        roles: Sequence[RoleSpec],
        *,
        policy: RestartPolicy | None = None,
        stop_timeout_seconds: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.roles = [SupervisedRole(spec) for spec in roles]
        self._policy = policy or RestartPolicy()
        self._stop_timeout_seconds = stop_timeout_seconds
        self._clock = clock

    @property
    def is_finished(self) -> bool:
        """Whether every role has ended and none will be started again."""
        return all(role.state in {RoleState.DONE, RoleState.GIVEN_UP} for role in self.roles)

    def start(self) -> None:
        """Start every role."""
        for role in self.roles:
            self._start(role)

    def run_once(self) -> None:
        """Look at every role once; start those that are due again.

        Raises ChildFailed, with the newest lines of its log, when the last role of a kind is given up.
        """
        for role in self.roles:
            if role.state is RoleState.RUNNING:
                self._look(role)
            if role.state is RoleState.WAITING and self._clock() >= role.restart_at_seconds:
                self._start(role)

    def stop(
        self,
        *,
        hurry: Callable[[], bool] = lambda: False,
        at_once_within_seconds: float | None = None,
        poll_seconds: float = 0.05,
    ) -> None:
        """End all roles kind by kind; those that take too long are killed, and all as soon as `hurry()`.

        With `at_once_within_seconds` all are ended together, and have so long: for a run that has nothing to finish.
        """
        stages = list(self._stages()) if at_once_within_seconds is None else [self.roles]
        timeout_seconds = (
            self._stop_timeout_seconds if at_once_within_seconds is None else at_once_within_seconds
        )
        for stage in stages:
            for role in stage:
                if role.child is not None:
                    role.child.terminate()
            deadline = self._clock() + timeout_seconds
            while any(_is_running(role) for role in stage) and self._clock() < deadline and not hurry():
                time.sleep(poll_seconds)
            for role in stage:
                self._end(role)

    def close(self) -> None:
        """End whatever still runs, at once."""
        for role in self.roles:
            self._end(role)

    def _stages(self) -> Iterator[list[SupervisedRole]]:
        for kind in dict.fromkeys(role.spec.kind for role in self.roles):
            yield [role for role in self.roles if role.spec.kind == kind]

    def _start(self, role: SupervisedRole) -> None:
        spec = role.spec
        role.num_restarts += bool(role.exits)
        role.child = ChildProcess.start(spec.command, log_path=spec.log_path, environment=spec.environment)
        role.state = RoleState.RUNNING
        log.info("role started", role=spec.name, pid=role.child.pid, restarts=role.num_restarts)

    def _look(self, role: SupervisedRole) -> None:
        assert role.child is not None
        status = role.child.poll()
        if status is None:
            return
        role.exits.append(Exit(status=status, at_seconds=self._clock()))
        # What it had to say of a full disk it may not have been able to write there.
        full = no_room(role.spec.log_path.parent) if status else None
        match decide(self._policy, role.exits):
            case Done():
                role.state = RoleState.DONE
                log.info("role done", role=role.spec.name)
            case Restart(after_seconds=after_seconds, reason=reason):
                reason = _joined(reason, full)
                role.state, role.reason = RoleState.WAITING, reason
                role.restart_at_seconds = self._clock() + after_seconds
                log.warning("role restarts", role=role.spec.name, reason=reason, after_seconds=after_seconds)
            case GiveUp(reason=reason):
                reason = _joined(reason, full)
                role.state, role.reason = RoleState.GIVEN_UP, reason
                log.error("role given up", role=role.spec.name, reason=reason)
                self._require_another(role)

    def _require_another(self, lost: SupervisedRole) -> None:
        if any(role.is_alive for role in self.roles if role.spec.kind == lost.spec.kind):
            return
        assert lost.child is not None
        lines = "\n".join(
            f"    {printable(line, limit=_log_line_characters)}" for line in lost.child.last_lines()
        )
        raise ChildFailed(
            f"{lost.spec.name} was given up: {lost.reason}. The end of {lost.spec.log_path}:\n{lines}"
        )

    def _end(self, role: SupervisedRole) -> None:
        if role.child is not None and role.state is RoleState.RUNNING:
            was_running = _is_running(role)
            status = role.child.kill()
            role.reason = "took too long" if was_running else describe_status(status)
            log.info("role stopped", role=role.spec.name, reason=role.reason)
        if role.state in {RoleState.NEW, RoleState.RUNNING, RoleState.WAITING}:
            role.state = RoleState.STOPPED


def _joined(reason: str, full: str | None) -> str:
    return reason if full is None else f"{reason}; {full}"


def _is_running(role: SupervisedRole) -> bool:
    return role.child is not None and role.child.poll() is None
