"""What is killed, and when: a plan made of a seed, and where in a run the victims are found."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rollog.kernel.crash_points import CrashPoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

shortest_pause_seconds, longest_pause_seconds = 0.2, 5.0


class Role(StrEnum):
    """What can be killed from outside."""

    DISPATCHER = "dispatcher"
    WORKER = "worker"
    ENGINE = "engine"
    TRAINER = "trainer"
    BROKER = "broker"
    ENVIRONMENT = "environment"
    AGENTS = "agents"
    ENDPOINT = "endpoint"


roles_of_every_run = (Role.DISPATCHER, Role.WORKER, Role.TRAINER, Role.BROKER)
"""The others are there with vLLM, with environments, or with agents."""

_commands = {
    Role.DISPATCHER: "rollog.cli.main dispatch ",
    Role.WORKER: "rollog.cli.main rollout ",
    Role.ENGINE: "VLLM::EngineCore",
    Role.TRAINER: "rollog.cli.main train ",
    Role.BROKER: " kafka.Kafka ",
    Role.ENVIRONMENT: "producers.environments.host",
    Role.AGENTS: "producers.agents.host",
    Role.ENDPOINT: "producers.sessions.host",
}

provoked_by = {CrashPoint.GRANT_SENT: Role.WORKER, CrashPoint.REDO_RUNNING: Role.TRAINER}
"""Windows that are only reached when a role comes back."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One planned death: of a role at that moment, or of whoever first reaches the window from then on."""

    pause_seconds: float
    target: Role | CrashPoint

    @property
    def provoked_by(self) -> Role | None:
        """The role to kill besides, so that the window is reached at all."""
        return provoked_by.get(self.target) if isinstance(self.target, CrashPoint) else None


def plan_rounds(
    seed: int, targets: Sequence[Role | CrashPoint], longest_pause_seconds: float = longest_pause_seconds
) -> Iterator[list[Kill]]:
    """Rounds without end: every target once in each, in an order and with pauses drawn from the seed."""
    draw = random.Random(seed)  # a plan that can be repeated
    while True:
        yield [
            Kill(draw.uniform(shortest_pause_seconds, longest_pause_seconds), target)
            for target in draw.sample(list(targets), len(targets))
        ]


def kill_role(ancestor: int, role: Role) -> bool:
    """SIGKILL one process of that role below `ancestor`; whether there was one."""
    return signal_role(ancestor, role, signal.SIGKILL) is not None


def signal_role(ancestor: int, role: Role, number: signal.Signals) -> int | None:
    """Send a signal to one process of that role below `ancestor`; its process id, None where there was none."""
    for pid, command in descendants(ancestor):
        if _commands[role] in command:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            return pid
    return None


def pids_of(ancestor: int, role: Role) -> list[int]:
    """Process ids of that role below `ancestor`."""
    return [pid for pid, command in descendants(ancestor) if _commands[role] in command]


def is_suspended(pid: int) -> bool:
    """Whether a process is stopped by a signal (Linux)."""
    return _state(pid) == "T"


def is_gone(pid: int) -> bool:
    """Whether a process has ended, its parent having taken note of that or not (Linux)."""
    return _state(pid) in {None, "Z", "X"}


def _state(pid: int) -> str | None:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def descendants(ancestor: int) -> list[tuple[int, str]]:
    """Process ids and command lines of all children of a process, and theirs (Linux)."""
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            # The name in parentheses may hold anything; the state and then the parent follow its last one.
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(directory.name))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return [(pid, command) for pid in found if (command := _command(pid))]


def _command(pid: int) -> str:
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace")
