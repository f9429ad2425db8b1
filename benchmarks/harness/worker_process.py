"""A lane: one process that makes runs one after the other, `python -m benchmarks.harness.worker_process ADDRESS HOME`.

Consumes jobs from standard input and answers on standard output, both as JSON lines. What a run logs goes to
standard error. A job that fails is answered with its error; the lane goes on.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.run_result import Collected
from benchmarks.scheduling.variants import Variant
from rollog.kernel.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from rollog.kernel.broker.ports import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One draw of one variant; `speed` engine seconds pass in a real one."""

    variant: Variant
    seed: int
    number: int
    speed: float

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Job:
        """The job of a line."""
        values: dict[str, Any] = json.loads(line)
        return cls(**(values | {"variant": Variant(**values["variant"])}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a job: what was collected, or an error."""

    collected: Collected | None = None
    error: str | None = None

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Outcome:
        """The outcome of a line."""
        values: dict[str, Any] = json.loads(line)
        collected = values["collected"]
        return cls(collected=None if collected is None else Collected(**collected), error=values["error"])


def carry_out(job: Job, broker: Broker, home: Path) -> Outcome:
    """Make the run of a job."""
    from benchmarks.harness.measuring import collect_batch  # noqa: PLC0415  # heavy, and only lanes need it

    draw = job.variant.draw(job.seed, job.number)
    try:
        return Outcome(collected=collect_batch(job.variant, draw, broker, home, speed=job.speed))
    except Exception as error:  # noqa: BLE001  # any role may end in any way; the caller hears of it
        return Outcome(error=f"{type(error).__name__}: {error}")


def main(arguments: Sequence[str], jobs: TextIO, answers: TextIO) -> None:
    """Carry out jobs until there are no more."""
    from rollog.kernel.broker.kafka import KafkaBroker  # noqa: PLC0415  # heavy, and only lanes need it

    address, home = arguments
    configure_logging(level=os.environ.get("ROLLOG_LOG_LEVEL", "error"))
    broker = KafkaBroker(address, connect_timeout_seconds=30.0)
    for line in jobs:
        outcome = carry_out(Job.from_json(line), broker, Path(home))
        answers.write(outcome.to_json() + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdin, sys.stdout)
