"""What the age of a run costs: a fabricated run of each size, and everything that reads one, each in its own process.

An empty run, with genesis and grants alone, is read first: its seconds and megabytes are those of starting at all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.growth.fabrication import fabricate
from benchmarks.growth.figures import Measured, growth_figures
from benchmarks.growth.reading import Cost, readings
from benchmarks.growth.run_settings import samples_per_step
from rollog.kernel.errors import ChildFailed
from rollog.kernel.processes import launcher_command

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from benchmarks.harness.figures import Figure
    from benchmarks.harness.own_kafka import OwnKafka

_again = "_again"
_starting = ("dispatcher", "trainer")
_max_seconds = 3600.0


def order_of_readings(chosen: Collection[str] = ()) -> list[tuple[str, str]]:
    """Name of each figure and what is read for it: commands before roles, which write, and each role twice.

    The second start of a role is the one after it has left in order, as when a run goes on. Where some are `chosen`,
    the others are left out.
    """
    names = [(name, name) for name in readings if name not in _starting]
    names += [(name, name) for name in _starting]
    names += [(f"{name}{_again}", name) for name in _starting]
    return [(name, what) for name, what in names if not chosen or what in chosen]


def measure_growth(
    *,
    sizes: Sequence[int],
    seed: int,
    kafka: OwnKafka,
    on_progress: Callable[[str], None],
    chosen: Collection[str] = (),
) -> list[Figure]:
    """All figures for these numbers of samples, or those `chosen`. Raises ChildFailed where a reading fails."""
    order = order_of_readings(chosen)
    empty = _read("empty", 0, order, seed=seed, kafka=kafka, on_progress=on_progress)
    by_reading: dict[str, list[Measured]] = {name: [] for name, _ in order}
    for num_samples in sorted(set(sizes)):
        num_steps = max(1, num_samples // samples_per_step)
        costs = _read(
            f"samples-{num_samples}", num_steps, order, seed=seed, kafka=kafka, on_progress=on_progress
        )
        for name, cost in costs.items():
            by_reading[name].append(
                Measured(num_samples=num_steps * samples_per_step, cost=cost, empty=empty[name])
            )
    return growth_figures(by_reading)


def _read(
    run: str,
    num_steps: int,
    order: Sequence[tuple[str, str]],
    *,
    seed: int,
    kafka: OwnKafka,
    on_progress: Callable[[str], None],
) -> Mapping[str, Cost]:
    """Make a run and read it in these ways."""
    fabricate(kafka.broker, run, num_steps=num_steps, seed=seed, home=kafka.home, on_progress=on_progress)
    costs: dict[str, Cost] = {}
    for name, what in order:
        costs[name] = cost = read_apart(what, run, kafka)
        on_progress(
            f"{run}: {name} took {cost.seconds:.1f} s ({cost.cpu_seconds:.1f} s of processor), "
            f"{cost.peak_bytes / 1e6:.0f} MB"
        )
    return costs


def read_apart(what: str, run: str, kafka: OwnKafka) -> Cost:
    """One reading in a process of its own. Raises ChildFailed with what it said."""
    place = ("--broker", kafka.address, "--home", str(kafka.home))
    command = [sys.executable, "-m", "benchmarks.growth.reading", what, run, *place]
    try:
        done = subprocess.run(
            launcher_command(command), capture_output=True, text=True, timeout=_max_seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ChildFailed(
            f"reading {run} ({what}) took more than {_max_seconds:.0f} s; choose fewer --samples"
        ) from error
    if done.returncode:
        raise ChildFailed(f"reading {run} ({what}) failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))
