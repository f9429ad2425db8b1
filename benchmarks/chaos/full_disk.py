"""A run whose disk is full, twice, and has room again each time: who meets it says so, and nothing is lost.

`log` is the disk of Kafka's own log, `store` that of weights, checkpoints, notes and the logs of the roles. Each is a
file system of its own, which is filled to the last byte while the run goes on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.chaos.checks import verify
from benchmarks.chaos.killed_run import ChaosRun, chaos_failed, resume_to_end, state_directory, stop
from benchmarks.chaos.measure import demo_settings
from benchmarks.chaos.mixed_run import MixedRun, step_seconds
from benchmarks.chaos.small_disk import small_disk
from benchmarks.harness.demo_run import set_options
from benchmarks.harness.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.chaos.small_disk import SmallDisk

disks = {"log": "kafka", "store": "runs"}
"""What is filled, by the folder of the state directory that lies on it."""
disk_bytes = 512 << 20
_meeting_seconds = 120.0
"""How long it may take until somebody has met the full disk and said so."""
_num_times = 2
_ending_seconds = 200.0
_tick_seconds = 0.1
says_so = "no room left"
"""What `rollog up` must say, with the place and the remedy."""


def full_disk_run(
    name: str,
    home: Path,
    disk: str,
    options: Sequence[str],
    *,
    num_times: int,
    on_progress: Callable[[str], None],
) -> tuple[str, ...]:
    """A run with these options whose disk is full so many times; what its audit and recount said.

    Raises ChildFailed where nobody says so, or the run does not go on, ConfigError where nothing can be mounted.
    """
    folder = home / disks[disk]
    store = home / "runs" / "store" if disk == "store" else home / "weights" / name
    with small_disk(folder, disk_bytes) as small:
        words = [*options, "--set", f"weights.uri={store.as_uri()}"]
        # As many restarts as anybody has.
        with MixedRun(name, home, words, on_progress, {"run.num_steps": 1_000_000}) as chaos:
            chaos.carry_out([])
            for number in range(num_times):
                # The first time until `rollog up` has ended, if it does; then it has room again while it still tries.
                _fill(chaos, small, on_progress, 0.0 if number else _ending_seconds)
            stop(chaos.up, name, home)
        run = ChaosRun(name=name, home=home, kills={}, missed=())
        resume_to_end(run)
        return verify(run, weights=store)


def _fill(
    chaos: MixedRun, small: SmallDisk, on_progress: Callable[[str], None], ending_seconds: float
) -> None:
    """Fill the disk until it was met, make room, and wait for another version."""
    said_before = _num_said(chaos.log)
    small.fill()
    on_progress(f"{small.path} is full")
    _wait_until_met(chaos, said_before)
    line = next(line for line in reversed(_lines(chaos.log)) if says_so in line)
    on_progress(line.strip())
    before = chaos.num_steps()
    _wait_for_end(chaos, ending_seconds)
    small.make_room()
    on_progress("room again")
    deadline = time.monotonic() + step_seconds
    while chaos.num_steps() <= before:
        if chaos.up.poll() is not None:
            on_progress(f"rollog up ended with exit status {chaos.up.returncode}; rollog resume")
            chaos.resume()
        if time.monotonic() > deadline:
            raise chaos_failed(f"no version within {step_seconds:.0f} s of room", chaos.home)
        time.sleep(_tick_seconds)


def _wait_until_met(chaos: MixedRun, said_before: int) -> None:
    deadline = time.monotonic() + _meeting_seconds
    while _num_said(chaos.log) == said_before:
        if chaos.up.poll() is not None or time.monotonic() > deadline:
            if _num_said(chaos.log) > said_before:
                return
            raise chaos_failed(f"nobody says {says_so!r} (exit status {chaos.up.poll()})", chaos.home)
        time.sleep(_tick_seconds)


def _wait_for_end(chaos: MixedRun, seconds: float) -> None:
    """Until `rollog up` has ended, where it does not wait for room."""
    deadline = time.monotonic() + seconds
    while chaos.up.poll() is None and time.monotonic() < deadline:
        time.sleep(_tick_seconds)


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()


def _num_said(log: Path) -> int:
    return sum(says_so in line for line in _lines(log))


def measure_full_disk(
    disk: str, *, engine: str, cache: Path, on_progress: Callable[[str], None]
) -> list[Figure]:
    """One run of the demo whose disk is full several times. Raises as `full_disk_run` does."""
    with state_directory(cache) as home:
        options = set_options({**demo_settings, "rollout.engine": engine})
        lines = full_disk_run(
            f"full-{disk}", home, disk, options, num_times=_num_times, on_progress=on_progress
        )
        for line in lines:
            on_progress(line)
    return [
        Figure(
            name=f"chaos.full_disk.{disk}",
            value=_num_times,
            unit="times full, the run audited clean, recounted and replayed equal",
        )
    ]
