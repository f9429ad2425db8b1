"""A role of one run in a process of its own, which says how much CPU time it has used.

The process is asked through a pipe and answers each question with its CPU seconds so far, or with what ended its role.
It ends when the pipe is closed, and so with the process that started it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from benchmarks.harness.own_kafka import kafka_broker
from benchmarks.harness.simulated_run import SimulatedRun, worker_name
from benchmarks.scaling.answering_workers import Answer, AnsweringWorkers, at_once
from rollog.kernel.errors import ChildFailed
from rollog.kernel.logs import configure_logging

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from benchmarks.harness.variant import Job
    from rollog.kernel.broker.ports import Broker


class Role(StrEnum):
    """What a process does in its run."""

    DISPATCHER = "dispatcher"
    TRAINER = "trainer"
    WORKERS = "workers"
    ANSWERS = "answers"
    """In the place of all workers: every task is answered soon (`benchmarks.scaling.answering_workers`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTask:
    """A role in the run of a job; of the workers those from `first` up to `end`; `answer` is theirs who only answer."""

    job: Job
    role: Role
    first: int = 0
    end: int = 0
    answer: Answer = at_once
    client: str = ""
    """Setting `broker.client` of all roles; empty: its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStatus:
    """CPU seconds of a process so far, and what ended its role, if anything did."""

    cpu_seconds: float
    error: str | None = None


class RoleProcess:
    """The process of a role, from the side that asks it. Close it, then wait for it."""

    def __init__(self, task: RoleTask, address: str, home: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._role = task.role
        self._questions, theirs = context.Pipe()
        self._process = context.Process(target=play_role, args=(theirs, task, address, home), name=task.role)
        self._process.start()
        theirs.close()

    def status(self) -> RoleStatus:
        """How it is. Raises ChildFailed when it, or its role, has ended by itself."""
        try:
            self._questions.send(None)
            status = self._questions.recv()
        except (OSError, EOFError) as error:
            raise ChildFailed(f"the {self._role} process of the benchmark ended: {error!r}") from error
        assert isinstance(status, RoleStatus)
        if status.error is not None:
            raise ChildFailed(f"a role in the {self._role} process of the benchmark ended: {status.error}")
        return status

    def close(self) -> None:
        """Let it end."""
        self._questions.close()

    def wait(self, seconds: float) -> None:
        """Wait for its end, and kill it when it takes longer."""
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


def play_role(questions: Connection, task: RoleTask, address: str, home: Path) -> None:
    """Play a role, and answer questions until there are no more."""
    configure_logging(level=os.environ.get("ROLLOG_LOG_LEVEL", "error"))
    broker = kafka_broker(address, task.client, connect_timeout_seconds=30.0)
    run = SimulatedRun(task.job, broker, home)
    try:
        _start(task, run, broker)
        while _is_asked(questions):
            questions.send(_status(run))
    finally:
        run.end()


def _is_asked(questions: Connection) -> bool:
    try:
        questions.recv()
    except EOFError:
        return False
    return True


def _start(task: RoleTask, run: SimulatedRun, broker: Broker) -> None:
    match task.role:
        case Role.DISPATCHER:
            run.start_dispatcher()
        case Role.TRAINER:
            run.start_trainer()
        case Role.WORKERS:
            run.start_workers(range(task.first, task.end))
        case Role.ANSWERS:
            variant = task.job.variant
            workers = AnsweringWorkers(
                broker,
                run.topics,
                [worker_name(number) for number in range(variant.num_workers)],
                capacity=variant.slots_per_worker,
                max_record_bytes=run.sections.broker.max_record_bytes,
                answer=task.answer,
            )
            run.start("answers", lambda _: workers.run(run.stop))


def _status(run: SimulatedRun) -> RoleStatus:
    error = None
    try:
        run.raise_errors()
    except Exception as failure:  # noqa: BLE001  # any role may end in any way; the caller hears of it
        error = f"{type(failure).__name__}: {failure}"
    return RoleStatus(cpu_seconds=time.process_time(), error=error)
