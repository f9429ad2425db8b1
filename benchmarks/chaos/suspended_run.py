"""One real run whose processes are suspended and go on, and the proof that nothing is lost and nothing is done twice.

As in `killed_run`, with SIGSTOP and SIGCONT in place of SIGKILL: at any moment, or inside a window of the protocol. The
supervisor may have to start a role again that the broker gave up meanwhile; it must give none up.
"""

from __future__ import annotations

import os
import re
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.chaos.killed_run import (
    ChaosRun,
    Target,
    chaos_failed,
    closing_seconds,
    resume_to_end,
    started,
    stop,
    wait_for_first_step,
    window_seconds,
)
from benchmarks.chaos.kills import Role, descendants, is_suspended, signal_role
from rollog.kernel.crash_points import suspends

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path

_tick_seconds = 0.02


def suspended_run(
    name: str,
    home: Path,
    options: Sequence[str],
    *,
    suspensions: Sequence[tuple[Target | None, float]],
    on_suspended: Callable[[str], None],
) -> ChaosRun:
    """A `rollog up` with these options whose processes are suspended one after the other, so many seconds each.

    A target of None is `rollog up` itself. After each suspension the run must make another version. Raises ChildFailed
    where it does not, or ends; what `rollog up` said lies in `home / "chaos.log"`.
    """
    points = home / "crash-points"
    points.mkdir(parents=True)
    log = home / "chaos.log"
    # As many restarts as anybody has: a suspension counts as none.
    with started(name, home, points, options, {"run.num_steps": 1_000_000}) as up:
        wait_for_first_step(up, log)
        for target, seconds in suspensions:
            pid = _suspended(up, points, target, home)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
            on_suspended(f"suspended for {seconds:g} s: {target or 'rollog up'}")
            before = _num_steps(log)
            _wait(
                up,
                home,
                partial(_has_stepped, log, before),
                closing_seconds,
                f"goes on after {target}",
            )
        stop(up, name, home)
    run = ChaosRun(name=name, home=home, kills={}, missed=())
    resume_to_end(run)
    return run


def _suspended(up: subprocess.Popen[bytes], points: Path, target: Target | None, home: Path) -> int:
    """Stop that process, at once or as it comes by the window; returns its process id."""
    if target is None:
        up.send_signal(signal.SIGSTOP)
        return up.pid
    found: list[int] = []

    def stopped_role(role: Role) -> bool:
        pid = signal_role(up.pid, role, signal.SIGSTOP)
        found.extend([] if pid is None else [pid])
        return bool(found)

    def stopped_at_window() -> bool:
        found.extend(pid for pid, _ in descendants(up.pid) if is_suspended(pid))
        return bool(found)

    if isinstance(target, Role):
        _wait(up, home, partial(stopped_role, target), window_seconds, f"has a {target}")
    else:
        (points / f".{target}").write_text(suspends)
        (points / f".{target}").rename(points / target)
        _wait(up, home, stopped_at_window, window_seconds, f"comes by {target}")
    return found[0]


def _has_stepped(log: Path, before: int) -> bool:
    return _num_steps(log) > before


def _num_steps(log: Path) -> int:
    """Steps that `rollog up` has told of."""
    return len(re.findall(r"step \d+/", log.read_text(errors="replace")))


def _wait(
    up: subprocess.Popen[bytes], home: Path, is_done: Callable[[], bool], seconds: float, what: str
) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        if up.poll() is not None or time.monotonic() > deadline:
            raise chaos_failed(f"the run no longer {what} (exit status {up.poll()})", home)
        time.sleep(_tick_seconds)
