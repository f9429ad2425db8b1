"""A run whose trainer and dispatcher are started again and again by mistake, while those before still work.

The roles are commands of their own, as in separate terminals, with nobody who starts them again. Of all trainers, and
of all dispatchers, one must be left after each start, and the run goes on. The others end as superseded, or as expired
where the broker refused them before their successor had committed its epoch.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.chaos.checks import prefix, raw_topic, verify
from benchmarks.chaos.killed_run import ChaosRun, closing_seconds, state_directory, steps_after
from benchmarks.chaos.kills import Role
from benchmarks.chaos.mixed_run import step_seconds
from benchmarks.chaos.raw_log import Decoder
from benchmarks.harness.demo_run import set_options
from benchmarks.harness.figures import Figure
from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.errors import ChildFailed, exit_status_expired, exit_status_fenced
from rollog.kernel.processes import ChildProcess
from rollog.run.connection import cache_directory, data_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_most_at_once = 3
_tick_seconds = 0.2
_good_ends = frozenset({0, exit_status_expired, exit_status_fenced})
_commands = {Role.DISPATCHER: "dispatch", Role.TRAINER: "train", Role.WORKER: "rollout"}


@dataclass(slots=True)
class DoubledRun:
    """The processes of one run, by role; the newest is last."""

    run: ChaosRun
    address: str
    resources: ExitStack
    children: dict[Role, list[ChildProcess]] = field(default_factory=dict)
    num_started: int = 0

    def start(self, role: Role, *words: str) -> None:
        """One more process of that role."""
        self.num_started += 1
        command = [sys.executable, "-m", "rollog.cli.main", _commands[role], "--run", self.run.name]
        child = ChildProcess.start(
            [*command, "--home", str(self.run.home), "--broker", self.address, *words],
            log_path=self.run.home / f"{role}-{self.num_started}.log",
        )
        self.resources.callback(child.kill)
        self.children.setdefault(role, []).append(child)

    def double(self, role: Role, number: int, *words: str) -> None:
        """Start so many more at once, wait until one is left, and then for another version. Raises ChildFailed."""
        for _ in range(number):
            self.start(role, *words)
        self._wait(lambda: len(self._left(role)) == 1, f"one {role} is left of {number + 1}")
        before = self.num_steps()
        self._wait(lambda: self.num_steps() > before, f"another version comes after a second {role}")

    def end(self) -> None:
        """Let the run end a few steps later, by a trainer that is told so, and wait until every role has ended."""
        for child in self._left(Role.TRAINER):
            child.terminate()
            child.process.wait(closing_seconds)
        self.children[Role.TRAINER] = []
        self.start(Role.TRAINER, "--amend", f"run.num_steps={self.num_steps() + steps_after}")
        self._wait(self._has_ended, "every role ends", closing_seconds)

    def _has_ended(self) -> bool:
        return not [child for role in self.children for child in self._left(role)]

    def num_steps(self) -> int:
        """Steps in the ledger."""
        decoder = Decoder()
        steps = raw_topic(self.address, self.run.name, "steps")
        return sum(decoder.decode(raw.value)[1]["kind"] == "step" for raw in steps)

    def _left(self, role: Role) -> list[ChildProcess]:
        """Those that still work. Raises ChildFailed where one ended otherwise than it may."""
        left = []
        for child in self.children[role]:
            status = child.poll()
            if status is None:
                left.append(child)
            elif status not in _good_ends:
                lines = "\n".join(child.last_lines())
                raise ChildFailed(f"a {role} of {self.run.name} ended with status {status}:\n{lines}")
        return left

    def _wait(self, is_done: Callable[[], bool], what: str, seconds: float = step_seconds) -> None:
        deadline = time.monotonic() + seconds
        while not is_done():
            if time.monotonic() > deadline:
                raise ChildFailed(f"run {self.run.name}: {what}: not within {seconds:.0f} s")
            time.sleep(_tick_seconds)


def doubled_run(
    name: str,
    home: Path,
    options: Sequence[str],
    *,
    num_doubles: int,
    on_double: Callable[[str], None],
    weights: Path | None = None,
) -> tuple[str, ...]:
    """A run with these options to which that happens so often; what its audit and recount said."""
    run = ChaosRun(name=name, home=home, kills={}, missed=())
    with EmbeddedKafka(data_directory(home), cache_directory(home)) as kafka, ExitStack() as resources:
        words = ["--run", name, "--set", "run.num_steps=1000000", "--set", f"run.prefix={prefix}", *options]
        created = ChildProcess.start(
            [sys.executable, "-m", "rollog.cli.main", "topics", "create", "--home", str(home), *words],
            log_path=home / "create.log",
        )
        if created.process.wait(closing_seconds):
            raise ChildFailed("\n".join(created.last_lines()))
        doubled = DoubledRun(run, kafka.address, resources)
        for role in (Role.DISPATCHER, Role.WORKER, Role.TRAINER):
            doubled.start(role)
        for number in range(num_doubles):
            role = (Role.TRAINER, Role.DISPATCHER)[number % 2]
            at_once = 1 + number // 2 % _most_at_once
            doubled.double(role, at_once)
            on_double(f"{at_once} more of the {role}: one is left, the run goes on")
        doubled.end()
    return verify(run, weights=weights)


def measure_doubles(
    *,
    num_doubles: int,
    settings: Mapping[str, object],
    cache: Path,
    on_progress: Callable[[str], None],
) -> list[Figure]:
    """One run of the demo to which that happens so often. Raises ChildFailed."""
    with state_directory(cache) as home:
        lines = doubled_run(
            "doubled", home, set_options(settings), num_doubles=num_doubles, on_double=on_progress
        )
        for line in lines:
            on_progress(line)
    return [
        Figure(
            name="chaos.doubles",
            value=num_doubles,
            unit="mistaken starts of a trainer or dispatcher, the run audited clean, recounted and replayed equal",
        )
    ]
