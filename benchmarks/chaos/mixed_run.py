"""One real run to which faults of every kind happen, `rollog up` itself among those that die.

As in `killed_run`, whatever dies is started again by `rollog up`; where that dies, `rollog resume` goes on, as anybody
would do. After the faults the run is stopped, and `rollog resume` lets it end a few steps later.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

from benchmarks.chaos.faults import Fault, FaultKind, Whole, role_at
from benchmarks.chaos.killed_run import (
    ChaosRun,
    chaos_failed,
    endless_settings,
    resume_to_end,
    stop,
    wait_for_first_step,
)
from benchmarks.chaos.kills import Role, descendants, is_gone, is_suspended, pids_of, provoked_by
from benchmarks.harness.demo_run import set_options
from rollog.kernel.crash_points import CrashPoint, directory_variable, suspends
from rollog.kernel.errors import exit_status_configuration
from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.chaos.faults import FaultTarget

window_seconds = 60.0
"""How long a fault waits for its victim before it is given up as missed."""
step_seconds = 300.0
"""How long the run may take to make another version after a fault."""
gone_seconds = 20.0
"""How long what a dead `rollog up` had started may outlive it."""
_double_seconds = 180.0
_tick_seconds = 0.02
_under_way = "under way here already"
_num_tries = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A fault that took place: when, in seconds since 1970 as the broker counts, and to which processes."""

    kind: FaultKind
    target: FaultTarget
    at: float
    pids: tuple[int, ...]
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedResult:
    """A run that is over, what happened to it, and when it was stopped on purpose."""

    run: ChaosRun
    happened: tuple[Happened, ...]
    stopped_at: float


@dataclass(slots=True)
class MixedRun(Component):
    """The processes below one `rollog up` or `rollog resume`, and what was done to them."""

    name: str
    home: Path
    options: Sequence[str]
    on_fault: Callable[[str], None]
    settings: Mapping[str, object] = field(default_factory=lambda: endless_settings)
    happened: list[Happened] = field(default_factory=list)
    missed: list[FaultTarget] = field(default_factory=list)
    up: subprocess.Popen[bytes] = field(init=False)

    def __enter__(self) -> Self:
        self._points.mkdir(parents=True)
        self.up = self._started("up", "--run", self.name, *self.options, *set_options(self.settings))
        return self

    def close(self) -> None:
        """Kill what runs; its children die with it."""
        self.up.kill()
        self.up.wait()

    @property
    def log(self) -> Path:
        """What `rollog up` and `rollog resume` say."""
        return self.home / "chaos.log"

    @property
    def _points(self) -> Path:
        return self.home / "crash-points"

    def carry_out(self, faults: Sequence[Fault]) -> None:
        """One after the other. Raises ChildFailed where the run ends, or makes no further version."""
        wait_for_first_step(self.up, self.log)
        for fault in faults:
            self._wait(lambda: False, fault.wait_seconds)
            self._carry_out(fault)
            if fault.settles:
                self.settle()
        self.settle()

    def resume(self) -> None:
        """Go on with the run after `rollog up` has ended."""
        local = {key: value for key, value in self.settings.items() if key.startswith("supervision.")}
        self.up = self._started("resume", self.name, *set_options(local))

    def settle(self) -> None:
        """Wait until there is another version than now."""
        before = self.num_steps()
        if not self._wait(lambda: self.num_steps() > before, step_seconds):
            raise self._failed(f"makes no version within {step_seconds:.0f} s")

    def num_steps(self) -> int:
        """The newest step that `rollog up` or `rollog resume` has told of."""
        told = re.findall(r"^step (\d+)/", self.log.read_text(errors="replace"), re.MULTILINE)
        return max(map(int, told), default=0)

    def _carry_out(self, fault: Fault) -> None:
        try:
            if fault.kind is FaultKind.DOUBLE:
                self._double(fault)
            elif isinstance(fault.target, CrashPoint):
                self._at_window(fault, fault.target)
            else:
                self._at_once(fault)
        except TimeoutError:
            self.missed.append(fault.target)
            self.on_fault(f"missed: {fault}")

    def _at_once(self, fault: Fault) -> None:
        target = fault.target
        if isinstance(target, Role):
            victims = self._require(partial(pids_of, self.up.pid, target))[:1]
        else:
            victims = [self.up.pid]
        if fault.kind is FaultKind.PAUSE:
            self._signal(victims[0], signal.SIGSTOP)
            self._suspended(fault, victims[0])
        elif isinstance(target, Whole):
            self._kill_everything(fault)
        else:
            self._signal(victims[0], signal.SIGKILL)
            self._note(fault, victims)

    def _at_window(self, fault: Fault, point: CrashPoint) -> None:
        """Plant a window and wait until somebody came by; who comes by only when it starts is killed besides."""
        mark, role = self._points / point, role_at(point)
        seen = set(pids_of(self.up.pid, role))
        mark.with_name(f".{point}").write_text(suspends if fault.kind is FaultKind.PAUSE else "")
        mark.with_name(f".{point}").rename(mark)
        provoked: set[int] = set()

        def is_reached() -> bool:
            seen.update(pids_of(self.up.pid, role))
            return not mark.exists()

        for number in range(_num_tries):
            provoked |= self._provoke(point)
            if self._wait(is_reached, window_seconds):
                break
            if number + 1 == _num_tries or provoked_by.get(point) is None:
                mark.unlink(missing_ok=True)
                raise TimeoutError
        if fault.kind is FaultKind.PAUSE:
            self._suspended(fault, self._require(lambda: [p for p in seen if is_suspended(p)])[0])
        else:
            self._note(fault, self._require(lambda: [p for p in seen - provoked if is_gone(p)]))

    def _provoke(self, point: CrashPoint) -> set[int]:
        role = provoked_by.get(point)
        if role is None:
            return set()
        victims = self._require(lambda: pids_of(self.up.pid, role))[:1]
        self._signal(victims[0], signal.SIGKILL)
        self._note(Fault(kind=FaultKind.KILL, target=role, wait_seconds=0.0), victims)
        return set(victims)

    def _suspended(self, fault: Fault, pid: int) -> None:
        begin = time.time()
        time.sleep(fault.pause_seconds)  # the victim's own time, whatever the others do meanwhile
        self._signal(pid, signal.SIGCONT)
        self._note(fault, [pid], at=begin)

    def _kill_everything(self, fault: Fault) -> None:
        """SIGKILL for `rollog up`; then `rollog resume`, once everything that it had started is gone."""
        below = [pid for pid, _ in descendants(self.up.pid)]
        self.up.kill()
        self.up.wait()
        self._note(fault, [self.up.pid, *below])
        deadline = time.monotonic() + gone_seconds
        while left := [pid for pid in below if not is_gone(pid)]:
            if time.monotonic() > deadline:
                raise self._failed(
                    f"leaves processes {left} behind, {gone_seconds:.0f} s after it was killed"
                )
            time.sleep(_tick_seconds)
        self.resume()

    def _double(self, fault: Fault) -> None:
        """A second process of a role, started on the machine where `rollog up` runs the first: it must be refused."""
        self.settle()  # an earlier fault may have ended the first one, or the broker
        command = "train" if fault.target is Role.TRAINER else "dispatch"
        begin = time.time()
        try:
            ended = subprocess.run(
                self._command(command, "--run", self.name),
                check=False,
                capture_output=True,
                text=True,
                timeout=_double_seconds,
            )  # our own command
        except subprocess.TimeoutExpired:
            raise self._failed(f"has a second {fault.target} that was neither refused nor ended") from None
        said = ended.stdout + ended.stderr
        if ended.returncode != exit_status_configuration or _under_way not in said:
            raise self._failed(
                f"has a second {fault.target} that was not refused: exit status {ended.returncode}\n{said[-2000:]}"
            )
        self._note(fault, [], at=begin)

    def _note(self, fault: Fault, pids: Sequence[int], at: float | None = None) -> None:
        self.happened.append(
            Happened(
                kind=fault.kind,
                target=fault.target,
                at=time.time() if at is None else at,
                pids=tuple(pids),
                pause_seconds=fault.pause_seconds,
            )
        )
        self.on_fault(str(fault))

    def _require(self, find: Callable[[], list[int]]) -> list[int]:
        """What is found before the time is up. Raises TimeoutError where nothing is."""
        found: list[int] = []

        def is_there() -> bool:
            found[:] = find()
            return bool(found)

        if not self._wait(is_there, window_seconds):
            raise TimeoutError
        return found

    def _wait(self, is_done: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not is_done():
            if self.up.poll() is not None:
                raise self._failed(f"ended by itself with exit status {self.up.returncode}")
            if time.monotonic() > deadline:
                return False
            time.sleep(_tick_seconds)
        return True

    def _signal(self, pid: int, number: signal.Signals) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise TimeoutError from None

    def _failed(self, what: str) -> Exception:
        newest = "; ".join(f"{each.kind} {each.target}" for each in self.happened[-3:]) or "nothing"
        return chaos_failed(f"run {self.name} {what}; done to it last: {newest}", self.home)

    def _command(self, command: str, *words: str) -> list[str]:
        return [sys.executable, "-m", "rollog.cli.main", command, "--home", str(self.home), *words]

    def _started(self, command: str, *words: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            return subprocess.Popen(  # our own command
                self._command(command, "--plain", *words),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, directory_variable: str(self._points)},
            )


def mixed_run(
    name: str,
    home: Path,
    options: Sequence[str],
    *,
    faults: Sequence[Fault],
    on_fault: Callable[[str], None],
) -> MixedResult:
    """A run with these options to which the faults happen, closed.

    Raises ChildFailed where it ends otherwise, or does not go on.
    """
    with MixedRun(name, home, options, on_fault) as chaos:
        chaos.carry_out(faults)
        stopped_at = time.time()
        stop(chaos.up, name, home)
        happened = tuple(chaos.happened)
        kills = [each.target for each in happened if each.kind is FaultKind.KILL]
        run = ChaosRun(
            name=name,
            home=home,
            kills={target: kills.count(target) for target in kills},
            missed=tuple(chaos.missed),
        )
    resume_to_end(run)
    return MixedResult(run=run, happened=happened, stopped_at=stopped_at)
