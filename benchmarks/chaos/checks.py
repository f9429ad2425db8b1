"""What is asked of every run when it is over: audit, replay and a recount from the raw records."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.killed_run import output_of
from benchmarks.chaos.raw_log import read_topic
from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.errors import ChildFailed
from rollog.run.connection import cache_directory, data_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.chaos.killed_run import ChaosRun
    from benchmarks.chaos.raw_log import Raw

prefix = "rollog"
_root = Path(__file__).resolve().parents[2]


def verify(run: ChaosRun, *, weights: Path | None = None) -> tuple[str, ...]:
    """Audit the closed run, train it again from version 0 and recount it.

    `weights` is its store where that is not below `run.home`. Returns the lines of the audit, and one of the recount.
    Raises ChildFailed, with what they said, when something is off or a step differs.
    """
    audited = output_of(run, "audit")
    output_of(run, "replay")
    with broker_of(run) as address:
        counted = recounted(run, address, weights or run.home / "weights" / run.name)
    dispositions = ", ".join(f"{name} {number}" for name, number in counted["dispositions"].items())
    line = (
        f"recounted from raw records: {counted['num_steps']} steps, {counted['num_samples']} samples ({dispositions}), "
        f"{counted['num_trained_twice']} trained twice, 0 faults"
    )
    return (*audited.splitlines(), line)


@contextmanager
def broker_of(run: ChaosRun) -> Iterator[str]:
    """The address of a Kafka over the log of a run that is over."""
    with EmbeddedKafka(data_directory(run.home), cache_directory(run.home)) as kafka:
        yield kafka.address


def recounted(run: ChaosRun, address: str, weights: Path) -> dict[str, Any]:
    """The recount, in a process of its own that never sees the product. Raises ChildFailed for faults."""
    words = ["--broker", address, "--prefix", prefix, "--run", run.name, "--weights", str(weights)]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos.recount", *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=_root,
    )  # our own command
    counted: dict[str, Any] = json.loads(ended.stdout) if ended.returncode in {0, 1} and ended.stdout else {}
    if ended.returncode or not counted.get("is_closed"):
        said = "\n".join(counted.get("faults", ())[:20]) or ended.stderr[-2000:] or "the run is not closed"
        raise ChildFailed(f"the recount of {run.name} found after {run.num_kills} kills:\n{said}")
    return counted


def raw_topic(address: str, run: str, topic: str) -> list[Raw]:
    """The records of one topic of a run."""
    return read_topic(address, f"{prefix}.{run}.{topic}")
