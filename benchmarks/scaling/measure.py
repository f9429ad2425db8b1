"""What more workers bring and what they cost the dispatcher.

Every role has its own processes: the dispatcher, the trainer, and one for each 16 workers. Throughput is counted over
the steps after the slots have filled, beside that of slots which are never empty. The dispatcher's limit is found with
workers that answer every task at once (`benchmarks.scaling.answering_workers`).
"""

from __future__ import annotations

import secrets
import time
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.variant import Job, Variant
from benchmarks.harness.workload import tokens_per_second
from benchmarks.scaling.answering_workers import Answer, at_once
from benchmarks.scaling.figures import Load, dispatcher_figures, worker_figures
from benchmarks.scaling.role_process import Role
from benchmarks.scaling.role_processes import RoleProcesses
from rollog.kernel.errors import BrokerTimeout
from schemas import LedgerKind, Sample, Status
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.harness.figures import Figure
    from benchmarks.harness.own_kafka import OwnKafka
    from benchmarks.harness.simulated_run import SimulatedRun
    from rollog.kernel.broker.ports import Record

numbers_of_workers = (4, 16, 64)
numbers_of_answering_workers = (32, 256)
_open_seconds = 0.25
"""For which tasks are open that are answered with long responses, so that heartbeats have some to name."""

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


def measure_scaling(
    *,
    num_seeds: int,
    seed: int,
    speed: float,
    kafka: OwnKafka,
    on_progress: Callable[[str], None],
    worker_numbers: Sequence[int] = numbers_of_workers,
    answering_numbers: Sequence[int] = numbers_of_answering_workers,
    answering_seconds: float = _answering_seconds,
    response_tokens: int = 1000,
) -> list[Figure]:
    """All figures. Raises ChildFailed when a process or a role in it ends by itself, BrokerTimeout without progress."""
    by_number: dict[int, list[Load]] = {number: [] for number in worker_numbers}
    answers = {
        "": at_once,
        f"_tokens_{response_tokens}": Answer(num_tokens=response_tokens, seconds=_open_seconds),
    }
    answered: dict[str, list[Load]] = {
        f"scaling.answering_{number}{kind}": [] for number in answering_numbers for kind in answers
    }
    for workload in range(num_seeds):
        for number, loads in by_number.items():
            job = Job(variant=worker_variant(number), seed=seed, number=workload, speed=speed)
            loads.append(measure_workers(job, kafka.address, kafka.home / secrets.token_hex(4)))
            on_progress(f"{number} workers workload {workload}: {loads[-1].throughput:.1f} tasks/s")
        for (name, loads), (number, answer) in zip(
            answered.items(), product(answering_numbers, answers.values()), strict=True
        ):
            job = Job(variant=answering_variant(number), seed=seed, number=workload, speed=speed)
            home = kafka.home / secrets.token_hex(4)
            loads.append(measure_dispatcher(job, kafka.address, home, answer, seconds=answering_seconds))
            on_progress(f"{name} workload {workload}: {loads[-1].throughput:.0f} tasks/s")
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
    """Run real workers and a real trainer until the dispatcher's share is known."""
    with RoleProcesses(job, address, home) as processes:
        for first in range(0, job.variant.num_workers, _workers_per_process):
            processes.start(Role.WORKERS, first, min(first + _workers_per_process, job.variant.num_workers))
        dispatcher = processes.start(Role.DISPATCHER)
        processes.run.wait_for_workers()
        processes.start(Role.TRAINER)
        processes.wait_for_step(_first_step, _engine_seconds_to(_first_step))
        before = dispatcher.status().cpu_seconds
        processes.wait_for_step(_last_step, _engine_seconds_to(_last_step))
        cpu_seconds = dispatcher.status().cpu_seconds - before
        return _load_between_steps(processes.run, job, cpu_seconds)


def measure_dispatcher(
    job: Job, address: str, home: Path, answer: Answer = at_once, *, seconds: float = _answering_seconds
) -> Load:
    """Let every task be answered for a while."""
    with RoleProcesses(job, address, home) as processes:
        processes.start(Role.ANSWERS, answer=answer)
        dispatcher = processes.start(Role.DISPATCHER)
        processes.run.wait_for_workers()
        processes.run.begin()
        time.sleep(min(_settling_seconds, seconds))
        began, before = time.time(), dispatcher.status().cpu_seconds
        time.sleep(seconds)
        ended, cpu_seconds = time.time(), dispatcher.status().cpu_seconds - before
        processes.check()
        num_tasks = sum(began * 1000 <= each.timestamp_ms < ended * 1000 for each in processes.run.samples())
        if not num_tasks:
            raise BrokerTimeout(
                f"{job.variant.name}: no task was answered in {seconds:g} s; free the machine"
            )
        return Load(num_tasks=num_tasks, seconds=ended - began, dispatcher_cpu_seconds=cpu_seconds)


def _engine_seconds_to(step: int) -> float:
    """After which a step is unreasonably late."""
    return 4 * (step * _step_seconds + _mean_seconds)


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
