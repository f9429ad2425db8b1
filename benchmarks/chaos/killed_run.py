"""One real run whose processes are killed, and the proof that nothing is lost and nothing is done twice.

The run is a `rollog up` with its own Kafka. Roles, vLLM's process and the broker get SIGKILL at moments drawn from a
seed; at the named windows of the protocol (`rollog.kernel.crash_points`) whoever comes by kills itself. What died is
started again by the run's own supervisor, never from here. When the run has closed, its log is checked from the
outside.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.chaos.kills import Role, kill_role, longest_pause_seconds, plan_rounds
from benchmarks.harness.demo_run import set_options
from rollog.kernel.crash_points import CrashPoint, directory_variable
from rollog.kernel.errors import ChildFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from enum import StrEnum

    from benchmarks.chaos.kills import Kill

window_seconds = 180.0
"""How long it may take until the next of the planted windows is reached before they are given up."""
closing_seconds = 600.0
_tick_seconds = 0.02
steps_after = 2
"""Steps that a run still takes when it goes on to its end."""
endless_settings = {
    "run.num_steps": 1_000_000,
    "supervision.max_restarts": 1_000_000,
    "supervision.first_delay_seconds": 0.1,
    "supervision.longest_delay_seconds": 0.5,
}

Target = Role | CrashPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosRun:
    """One run that was put through kills and ended by itself."""

    name: str
    home: Path
    kills: Mapping[StrEnum, int]
    """Deaths that took place, by what they were aimed at."""
    missed: Sequence[StrEnum]
    """Planned ones that found nobody: a role that was not there, a window that nobody reached in time."""

    @property
    def num_kills(self) -> int:
        """All deaths."""
        return sum(self.kills.values())


@dataclass(slots=True)
class Chaos:
    """Kills the processes below one `rollog up`."""

    up: subprocess.Popen[bytes]
    points: Path
    on_kill: Callable[[str], None]
    kills: Counter[StrEnum] = field(default_factory=Counter)
    missed: list[StrEnum] = field(default_factory=list)

    def carry_out(self, kills: Sequence[Kill]) -> None:
        """One round: kills roles, plants windows, and waits for those to be reached, as long as the run goes on."""
        planted: list[Kill] = []
        for kill in kills:
            self._wait(lambda: False, kill.pause_seconds)
            if isinstance(kill.target, Role):
                self._kill(kill.target)
            else:
                (self.points / kill.target).touch()
                planted.append(kill)
                self._provoke([kill])
        self._wait_for_windows()
        # Who came back with nothing to do again, say, did not come by a window; another time it may.
        self._provoke([kill for kill in planted if kill.target in self._unreached()])
        self._wait_for_windows()
        for kill in planted:
            self._count(kill.target, happened=not _withdrawn(self.points / kill.target))

    def _provoke(self, kills: Sequence[Kill]) -> None:
        for role in {kill.provoked_by for kill in kills if kill.provoked_by is not None}:
            self._kill(role)

    def _unreached(self) -> list[str]:
        return sorted(mark.name for mark in self.points.iterdir())

    def _is_changed(self, before: list[str]) -> bool:
        return self._unreached() != before

    def _wait_for_windows(self) -> None:
        """Until all are reached, or none was for a while."""
        while (left := self._unreached()) and self._wait(partial(self._is_changed, left), window_seconds):
            pass

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.up.poll() is not None

    def _kill(self, role: Role) -> None:
        """Kill a role as soon as it is there: it may be on its way back from the death before."""
        self._count(role, happened=self._wait(lambda: kill_role(self.up.pid, role), window_seconds))

    def _count(self, target: Target, *, happened: bool) -> None:
        if happened:
            self.kills[target] += 1
            self.on_kill(f"killed: {target}")
        else:
            self.missed.append(target)

    def _wait(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Whether that came to be before the time was up or the run over."""
        deadline = time.monotonic() + seconds
        while not is_done():
            if self.is_over or time.monotonic() > deadline:
                return False
            time.sleep(_tick_seconds)
        return True


def _withdrawn(mark: Path) -> bool:
    """Take back the mark of a window; whether nobody had reached it."""
    try:
        mark.unlink()
    except FileNotFoundError:
        return False
    return True


def chaos_run(
    name: str,
    home: Path,
    options: Sequence[str],
    *,
    num_kills: int,
    seed: int,
    targets: Sequence[Target],
    on_kill: Callable[[str], None],
    longest_pause_seconds: float = longest_pause_seconds,
) -> ChaosRun:
    """A `rollog up` with these options, put through rounds of kills until so many took place, and then closed.

    The run would go on without end. After the kills it is stopped, and `rollog resume` lets it end a few steps later.

    Raises ChildFailed when a command ends otherwise than it should, or not in `closing_seconds`; what `rollog up` said
    lies in `home / "chaos.log"`.
    """
    points = home / "crash-points"
    points.mkdir(parents=True)
    with started(name, home, points, options) as up:
        chaos = Chaos(up, points, on_kill)
        wait_for_first_step(up, home / "chaos.log")
        for kills in plan_rounds(seed, targets, longest_pause_seconds):
            chaos.carry_out(kills)
            if chaos.is_over:
                raise chaos_failed(f"run {name} ended by itself with exit status {up.returncode}", home)
            if chaos.kills.total() >= num_kills:
                break
        stop(up, name, home)
    run = ChaosRun(name=name, home=home, kills=dict(chaos.kills), missed=tuple(chaos.missed))
    resume_to_end(run)
    return run


def stop(up: subprocess.Popen[bytes], name: str, home: Path) -> None:
    """End it gracefully. Raises ChildFailed where it ends otherwise, or not in time."""
    up.terminate()
    try:
        status = up.wait(closing_seconds)
    except subprocess.TimeoutExpired:
        raise chaos_failed(f"run {name} did not stop in {closing_seconds:.0f} s", home) from None
    if status != 128 + signal.SIGTERM:
        raise chaos_failed(f"run {name} stopped with exit status {status}", home)


def resume_to_end(run: ChaosRun) -> None:
    """Let a run that was stopped end, a few steps later. Raises ChildFailed where it does not."""
    summary = json.loads((run.home / "runs" / run.name / "summary.json").read_text())
    output_of(run, "resume", "--plain", "--set", f"run.num_steps={summary['steps'] + steps_after}")


@contextmanager
def state_directory(cache: Path) -> Iterator[Path]:
    """A new state directory with that cache, gone at the end."""
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="rollog-chaos-") as directory:
        home = Path(directory) / "home"
        home.mkdir()
        (home / "cache").symlink_to(cache.resolve())
        yield home


def output_of(run: ChaosRun, command: str, *options: str) -> str:
    """What a command of `rollog` says of that run. Raises ChildFailed where it fails."""
    words = [sys.executable, "-m", "rollog.cli.main", command, run.name, "--home", str(run.home), *options]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)  # our own command
    if ended.returncode:
        raise ChildFailed(
            f"rollog {command} {run.name} ended with exit status {ended.returncode} after {run.num_kills} kills:\n"
            f"{ended.stdout[-3000:]}{ended.stderr[-2000:]}"
        )
    return ended.stdout


@contextmanager
def started(
    name: str,
    home: Path,
    points: Path,
    options: Sequence[str],
    settings: Mapping[str, object] = endless_settings,
) -> Iterator[subprocess.Popen[bytes]]:
    """A `rollog up` that reaches the windows named in `points`; it is killed at the end."""
    command = [sys.executable, "-m", "rollog.cli.main", "up", "--plain", "--home", str(home), "--run", name]
    command += [*options, *set_options(settings)]
    with (home / "chaos.log").open("wb") as output:
        process = subprocess.Popen(  # our own command
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, directory_variable: str(points)},
        )
        try:
            yield process
        finally:
            process.kill()  # its children die with it
            process.wait()


def wait_for_first_step(up: subprocess.Popen[bytes], log: Path) -> None:
    """Raises ChildFailed where it does not come."""
    deadline = time.monotonic() + closing_seconds
    while "step 1/" not in log.read_text(errors="replace"):
        if up.poll() is not None or time.monotonic() > deadline:
            raise chaos_failed("the run did not come to its first step", log.parent)
        time.sleep(_tick_seconds)


def chaos_failed(what: str, home: Path) -> ChildFailed:
    """The error of a run, with the end of what it said."""
    log = home / "chaos.log"
    lines = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    return ChildFailed(f"{what}; the end of {log}:\n{lines}")
