"""What more workers bring and what they cost the dispatcher.

Every role has its own processes: the dispatcher, the trainer, and one for each 16 workers. Throughput is counted over
the steps after the slots have filled, beside that of slots which are never empty. The dispatcher's limit is found with
workers that answer every task at once (`benchmarks.scaling.answering_workers`).
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Self

from benchmarks.harness.figures import Figure, bootstrap_interval, rounded
from benchmarks.harness.worker_process import Job
from benchmarks.harness.workload_seeds import tokens_per_second
from benchmarks.scaling.role_process import PartJob, PartStatus, Role
from benchmarks.scheduling.variants import Variant, part_of
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import BrokerTimeout, ChildFailed
from rollog.kernel.processes import launcher_command
from schemas import LedgerKind, LedgerRecord, Sample, Status
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from benchmarks.harness.simulated_run import SimulatedRun
    from rollog.kernel.broker.ports import Broker, Record

numbers_of_workers = (4, 16, 64)
numbers_of_answering_workers = (32, 256)
least_share_of_linear = 0.9
most_cpu_seconds = 0.5
"""Targets: throughput over that of slots that are never empty; the dispatcher's CPU seconds for 1,000 tasks."""

_slots_per_worker = 16
_group_size = 8
_mean_seconds = 10.0
_variation = 0.5
_workers_per_process = 16
_step_seconds = _mean_seconds * _group_size / _slots_per_worker
_first_step = 4
_last_step = 10
_answering_seconds = 10.0
_settling_seconds = 3.0
_ready_seconds = 60.0
_poll_seconds = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a dispatcher went through in a while, in real seconds. `linear` is tasks/s with every slot always taken."""

    num_tasks: int
    seconds: float
    dispatcher_cpu_seconds: float
    linear: float | None = None

    @property
    def throughput(self) -> float:
        """Tasks ended in a second."""
        return self.num_tasks / self.seconds

    @property
    def share_of_linear(self) -> float:
        """Throughput over `linear`."""
        assert self.linear is not None
        return self.throughput / self.linear

    @property
    def cpu_seconds(self) -> float:
        """The dispatcher's CPU seconds for 1,000 tasks."""
        return 1000 * self.dispatcher_cpu_seconds / self.num_tasks

    @property
    def dispatcher_share(self) -> float:
        """The dispatcher's CPU seconds in a second."""
        return self.dispatcher_cpu_seconds / self.seconds


def measure_scaling(
    *,
    num_draws: int,
    seed: int,
    speed: float,
    address: str,
    home: Path,
    on_progress: Callable[[str], None],
    worker_numbers: Sequence[int] = numbers_of_workers,
    answering_numbers: Sequence[int] = numbers_of_answering_workers,
    answering_seconds: float = _answering_seconds,
) -> list[Figure]:
    """All figures. Raises ChildFailed when a process or a role in it ends by itself, BrokerTimeout without progress."""
    by_number: dict[int, list[Load]] = {number: [] for number in worker_numbers}
    answered: dict[int, list[Load]] = {number: [] for number in answering_numbers}
    for draw in range(part_of(num_draws, 20)):
        for number, loads in by_number.items():
            job = Job(variant=worker_variant(number), seed=seed, number=draw, speed=speed)
            loads.append(measure_workers(job, address, home / secrets.token_hex(4)))
            on_progress(f"{number} workers draw {draw}: {loads[-1].throughput:.1f} tasks/s")
        for number, loads in answered.items():
            job = Job(variant=answering_variant(number), seed=seed, number=draw, speed=speed)
            run_home = home / secrets.token_hex(4)
            loads.append(measure_dispatcher(job, address, run_home, seconds=answering_seconds))
            on_progress(f"{number} answering workers draw {draw}: {loads[-1].throughput:.0f} tasks/s")
    return [*worker_figures(by_number), *dispatcher_figures(answered)]


def worker_variant(num_workers: int) -> Variant:
    """As many groups a step as there are workers, and more groups open than slots and prefetched tasks can hold."""
    return Variant(
        name=f"scaling.workers_{num_workers}",
        num_groups=num_workers,
        group_size=_group_size,
        num_workers=num_workers,
        slots_per_worker=_slots_per_worker,
        prefetch_tasks=8,
        num_steps=10 * _last_step,
        alpha=8.0,
        median_seconds=_mean_seconds / (1 + _variation**2) ** 0.5,
        variation=_variation,
        longest_seconds=6 * _mean_seconds,
    )


def answering_variant(num_workers: int) -> Variant:
    """One step that never comes: more groups than can be answered in the time."""
    return Variant(
        name=f"scaling.answering_{num_workers}",
        num_groups=20_000,
        group_size=_group_size,
        num_workers=num_workers,
        slots_per_worker=_slots_per_worker,
        prefetch_tasks=8,
    )


def measure_workers(job: Job, address: str, home: Path) -> Load:
    """Run real workers and a real trainer until the dispatcher's part can be told."""
    with _Parts(job, address, home) as parts:
        for first in range(0, job.variant.num_workers, _workers_per_process):
            parts.start(Role.WORKERS, first, min(first + _workers_per_process, job.variant.num_workers))
        dispatcher = parts.start(Role.DISPATCHER)
        parts.run.wait_for_workers()
        parts.start(Role.TRAINER)
        parts.wait_for_step(_first_step)
        before = dispatcher.status().cpu_seconds
        parts.wait_for_step(_last_step)
        cpu_seconds = dispatcher.status().cpu_seconds - before
        return _load_between_steps(parts.run, job, cpu_seconds)


def measure_dispatcher(job: Job, address: str, home: Path, *, seconds: float = _answering_seconds) -> Load:
    """Let every task be answered at once for a while."""
    with _Parts(job, address, home) as parts:
        parts.start(Role.ANSWERS)
        dispatcher = parts.start(Role.DISPATCHER)
        parts.run.wait_for_workers()
        parts.run.begin()
        time.sleep(min(_settling_seconds, seconds))
        began, before = time.time(), dispatcher.status().cpu_seconds
        time.sleep(seconds)
        ended, cpu_seconds = time.time(), dispatcher.status().cpu_seconds - before
        parts.check()
        num_tasks = sum(began * 1000 <= each.timestamp_ms < ended * 1000 for each in parts.run.samples())
        if not num_tasks:
            raise BrokerTimeout(
                f"{job.variant.name}: no task was answered in {seconds:g} s; free the machine"
            )
        return Load(num_tasks=num_tasks, seconds=ended - began, dispatcher_cpu_seconds=cpu_seconds)


def worker_figures(by_number: Mapping[int, Sequence[Load]]) -> list[Figure]:
    """Per number of workers throughput, its share of linear, and the dispatcher's CPU time."""
    most = max(by_number, default=0)
    return [
        figure
        for number, loads in by_number.items()
        if loads
        for figure in _worker_figures(f"scaling.workers_{number}", loads, is_most=number == most)
    ]


def _worker_figures(name: str, loads: Sequence[Load], *, is_most: bool) -> list[Figure]:
    linear = fmean(load.linear for load in loads if load.linear is not None)
    shares = [load.share_of_linear for load in loads]
    return [
        _figure(f"{name}.throughput", "tasks/s", [load.throughput for load in loads], ideal=linear),
        _figure(
            f"{name}.share_of_linear",
            "throughput / that of slots which are never empty",
            shares,
            target=least_share_of_linear,
            ideal=1.0,
        ),
        _figure(
            f"{name}.dispatcher_cpu",
            "CPU s of the dispatcher for 1,000 tasks",
            [load.cpu_seconds for load in loads],
            target=most_cpu_seconds if is_most else None,
            higher_is_better=False,
        ),
        _figure(
            f"{name}.dispatcher_share",
            "CPU s of the dispatcher in a second",
            [load.dispatcher_share for load in loads],
            higher_is_better=False,
        ),
    ]


def dispatcher_figures(by_number: Mapping[int, Sequence[Load]]) -> list[Figure]:
    """Per number of answering workers the tasks that got through, and what each cost the dispatcher."""
    return [
        figure
        for number, loads in by_number.items()
        if loads
        for figure in _dispatcher_figures(f"scaling.answering_{number}", loads)
    ]


def _dispatcher_figures(name: str, loads: Sequence[Load]) -> list[Figure]:
    return [
        _figure(
            f"{name}.throughput",
            "tasks/s, every task answered at once",
            [load.throughput for load in loads],
        ),
        _figure(
            f"{name}.dispatcher_cpu",
            "CPU s of the dispatcher for 1,000 tasks",
            [load.cpu_seconds for load in loads],
            target=most_cpu_seconds,
            higher_is_better=False,
        ),
        _figure(
            f"{name}.dispatcher_share",
            "CPU s of the dispatcher in a second: near 1 it is what holds the tasks up",
            [load.dispatcher_share for load in loads],
        ),
        _figure(
            f"{name}.saturation",
            "tasks/s that would keep the dispatcher busy all the time",
            [load.throughput / load.dispatcher_share for load in loads],
        ),
    ]


def _figure(
    name: str,
    unit: str,
    values: Sequence[float],
    *,
    target: float | None = None,
    ideal: float | None = None,
    higher_is_better: bool = True,
) -> Figure:
    return Figure(
        name=name,
        value=round(fmean(values), 4),
        unit=unit,
        target=target,
        ideal=None if ideal is None else round(ideal, 4),
        higher_is_better=higher_is_better,
        interval=rounded(bootstrap_interval(values, fmean)),
        num_draws=len(values),
    )


def _load_between_steps(run: SimulatedRun, job: Job, cpu_seconds: float) -> Load:
    stepped_ms = [stamp for stamp, record in run.ledger() if record.kind is LedgerKind.STEP]
    began_ms, ended_ms = stepped_ms[_first_step - 1], stepped_ms[_last_step - 1]
    in_time = (record for record in run.samples() if began_ms <= record.timestamp_ms < ended_ms)
    ended = [sample for record in in_time if (sample := _finished(record)) is not None]
    mean_seconds = fmean(sample.num_tokens for sample in ended) / tokens_per_second / job.speed
    return Load(
        num_tasks=len(ended),
        seconds=(ended_ms - began_ms) / 1000,
        dispatcher_cpu_seconds=cpu_seconds,
        linear=job.variant.num_workers * job.variant.slots_per_worker / mean_seconds,
    )


def _finished(record: Record) -> Sample | None:
    sample = decode(record.value or b"")
    return sample if isinstance(sample, Sample) and sample.status is Status.FINISHED else None


class _Part:
    """One process of a run."""

    def __init__(self, part: PartJob, address: str, home: Path) -> None:
        self._role = part.role
        self._process = subprocess.Popen(  # our own module
            launcher_command([sys.executable, "-m", "benchmarks.scaling.role_process", address, str(home)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._tell(part.to_json())

    def status(self) -> PartStatus:
        """How it is. Raises ChildFailed when it, or a role in it, has ended by itself."""
        self._tell("")
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise ChildFailed(f"the {self._role} process of the benchmark ended; what it said stands above")
        status = PartStatus.from_json(answer)
        if status.error is not None:
            raise ChildFailed(f"a role in the {self._role} process of the benchmark ended: {status.error}")
        return status

    def close_input(self) -> None:
        """Let it end."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                self._process.kill()

    def wait(self, seconds: float) -> None:
        """Wait for its end, and kill it when it takes longer."""
        with self._process:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ChildFailed(f"the {self._role} process of the benchmark ended: {error}") from error


class _Parts:
    """The processes of one run, which is ended and removed with them."""

    def __init__(self, job: Job, address: str, home: Path) -> None:
        from benchmarks.harness.simulated_run import SimulatedRun  # noqa: PLC0415  # heavy: help needs none of it
        from rollog.kernel.broker.kafka import KafkaBroker  # noqa: PLC0415

        self._job = job
        self._address = address
        self._home = home
        self._parts: list[_Part] = []
        draw = job.variant.draw(job.seed, job.number)
        self._broker: Broker = KafkaBroker(address, connect_timeout_seconds=_ready_seconds)
        self._num_steps = 0
        self.run = SimulatedRun(job.variant, draw, self._broker, home, job.speed)

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
            for part in self._parts:
                ending.callback(part.wait, _ready_seconds)
            for part in self._parts:
                part.close_input()

    def start(self, role: Role, first: int = 0, end: int = 0) -> _Part:
        """Start a process with a role, or with the workers from `first` up to `end`."""
        part = _Part(PartJob(job=self._job, role=role, first=first, end=end), self._address, self._home)
        self._parts.append(part)
        return part

    def check(self) -> None:
        """Raises ChildFailed when one has ended by itself."""
        for part in self._parts:
            part.status()

    def wait_for_step(self, number: int) -> None:
        """Wait until the ledger has that many steps. Raises BrokerTimeout when it takes unreasonably long."""
        allowed = _ready_seconds + 4 * (number * _step_seconds + _mean_seconds) / self._job.speed
        deadline = time.monotonic() + allowed
        while self._num_steps < number:
            self._num_steps += sum(map(_is_step, self._ledger.poll(_poll_seconds)))
            self.check()
            if time.monotonic() > deadline:
                raise BrokerTimeout(
                    f"{self._job.variant.name}: no step {number} after {allowed:.0f} s; choose a lower --speed, or "
                    "free the machine"
                )


def _is_step(record: Record) -> bool:
    found = decode(record.value or b"")
    return isinstance(found, LedgerRecord) and found.kind is LedgerKind.STEP
