"""The processes of one run, which is created, ended and removed with them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from benchmarks.harness.simulated_run import SimulatedRun
from benchmarks.scaling.answering_workers import Answer, at_once
from benchmarks.scaling.role_process import RoleProcess, RoleTask
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import BrokerTimeout
from schemas import LedgerKind, LedgerRecord
from schemas.codec import decode

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from benchmarks.harness.variant import Job
    from benchmarks.scaling.role_process import Role
    from rollog.kernel.broker.ports import Broker, Record

_max_wait_seconds = 60.0
_poll_seconds = 0.1


class RoleProcesses:
    """The run of `job` at the broker of `address`, with its files at `home`. Enter it, then start roles."""

    def __init__(self, job: Job, address: str, home: Path, client: str = "") -> None:
        self._client = client
        self._job = job
        self._address = address
        self._home = home
        self._processes: list[RoleProcess] = []
        self._broker: Broker = KafkaBroker(address, connect_timeout_seconds=_max_wait_seconds)
        self._num_steps = 0
        self.run = SimulatedRun(job, self._broker, home)

    def __enter__(self) -> Self:
        self.run.create()
        self._ledger = self._broker.consumer(client_id="bench")
        self._ledger.assign({TopicPartition(self.run.topics.steps, 0): 0})
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with ExitStack() as ending:
            ending.callback(self.run.remove)
            ending.callback(self._ledger.close)
            for process in self._processes:
                ending.callback(process.wait, _max_wait_seconds)
            for process in self._processes:
                process.close()

    def start(self, role: Role, first: int = 0, end: int = 0, answer: Answer = at_once) -> RoleProcess:
        """Start a process with a role, or with the workers from `first` up to `end`."""
        task = RoleTask(job=self._job, role=role, first=first, end=end, answer=answer, client=self._client)
        process = RoleProcess(task, self._address, self._home)
        self._processes.append(process)
        return process

    def check(self) -> None:
        """Raises ChildFailed when one has ended by itself."""
        for process in self._processes:
            process.status()

    def wait_for_step(self, number: int, max_engine_seconds: float) -> None:
        """Wait until the ledger has that many steps. Raises ChildFailed, BrokerTimeout."""
        max_seconds = _max_wait_seconds + max_engine_seconds / self._job.speed
        deadline = time.monotonic() + max_seconds
        while self._num_steps < number:
            self._num_steps += sum(map(_is_step, self._ledger.poll(_poll_seconds)))
            self.check()
            if time.monotonic() > deadline:
                raise BrokerTimeout(
                    f"{self._job.variant.name}: no step {number} after {max_seconds:.0f} s; choose a lower --speed, "
                    "or free the machine"
                )


def _is_step(record: Record) -> bool:
    found = decode(record.value or b"")
    return isinstance(found, LedgerRecord) and found.kind is LedgerKind.STEP
