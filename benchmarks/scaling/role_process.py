"""A part of one run in a process of its own, `python -m benchmarks.scaling.role_process ADDRESS HOME`.

Consumes on standard input one line that says what to start, then any number of lines, each answered on standard output
with the CPU seconds of this process so far, or with what ended a role. Ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.worker_process import Job
from rollog.kernel.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from benchmarks.harness.simulated_run import SimulatedRun


class Role(StrEnum):
    """What a part does in its run."""

    DISPATCHER = "dispatcher"
    TRAINER = "trainer"
    WORKERS = "workers"
    ANSWERS = "answers"
    """In the place of all workers: every task is answered at once (`benchmarks.scaling.answering_workers`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartJob:
    """A role in the run of a job; of the workers those from `first` up to `end`."""

    job: Job
    role: Role
    first: int = 0
    end: int = 0

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> PartJob:
        """The part of a line."""
        values: dict[str, Any] = json.loads(line)
        job = Job.from_json(json.dumps(values["job"]))
        return cls(**(values | {"job": job, "role": Role(values["role"])}))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """How a part is."""

    cpu_seconds: float
    error: str | None = None

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> PartStatus:
        """The status of a line."""
        return cls(**json.loads(line))


def start(part: PartJob, run: SimulatedRun) -> None:
    """Start the roles of a part."""
    match part.role:
        case Role.DISPATCHER:
            run.start_dispatcher()
        case Role.TRAINER:
            run.start_trainer()
        case Role.WORKERS:
            run.start_workers(range(part.first, part.end))
        case Role.ANSWERS:
            run.start_answers()


def status_of(run: SimulatedRun) -> PartStatus:
    """CPU seconds of this process, and what ended a role."""
    error = None
    try:
        run.raise_errors()
    except Exception as failure:  # noqa: BLE001  # any role may end in any way; the caller hears of it
        error = f"{type(failure).__name__}: {failure}"
    return PartStatus(cpu_seconds=time.process_time(), error=error)


def main(arguments: Sequence[str], questions: TextIO, answers: TextIO) -> None:
    """Be a part until there are no more questions."""
    from benchmarks.harness.simulated_run import SimulatedRun  # noqa: PLC0415  # heavy, and only parts need it
    from rollog.kernel.broker.kafka import KafkaBroker  # noqa: PLC0415

    address, home = arguments
    configure_logging(level=os.environ.get("ROLLOG_LOG_LEVEL", "error"))
    part = PartJob.from_json(questions.readline())
    job = part.job
    draw = job.variant.draw(job.seed, job.number)
    broker = KafkaBroker(address, connect_timeout_seconds=30.0)
    run = SimulatedRun(job.variant, draw, broker, Path(home), job.speed)
    try:
        start(part, run)
        for _ in questions:
            answers.write(status_of(run).to_json() + "\n")
            answers.flush()
    finally:
        run.end()


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdin, sys.stdout)
