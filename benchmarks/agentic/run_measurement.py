"""What one run of episodes took, read from its log, and how much processor time its process spent meanwhile."""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.agentic.episode_run import EpisodeRun
from benchmarks.agentic.variants import EpisodeVariant, seconds_of_a_step
from rollog.kernel.errors import BrokerTimeout
from schemas import LedgerKind, Sample, Status, num_turns, tasks_in
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from benchmarks.harness.variant import Job
    from rollog.kernel.broker.ports import Broker, Record

_longest_ideal = 4.0
"""A run that takes so many times its ideal has gone wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """Engine seconds of a run and of its ideal: to the full batch, or of one step of several.

    `cpu_seconds` are those of dispatcher, worker, trainer and environments together; `num_turns` were finished.
    `failed` and `cancelled` count episodes, `kills` processes of environments.
    """

    seconds: float
    ideal_seconds: float
    real_seconds: float
    cpu_seconds: float
    num_tasks: int
    num_turns: int
    failed: int
    cancelled: int
    kills: int


def measure_run(job: Job, broker: Broker, home: Path) -> EpisodeResult:
    """Make one run, and say what it took.

    Raises whatever ended a role, or BrokerTimeout when the run did not end in time.
    """
    run = EpisodeRun(job, broker, home / secrets.token_hex(4))
    cpu_before = _cpu_seconds()
    try:
        run.create()
        with run.roles():
            run.wait_until_closed(_longest_ideal * _ideal_of_all_steps(run.variant, job))
        return _result(run, job, _cpu_seconds() - cpu_before)
    finally:
        run.remove()


def _ideal_of_all_steps(variant: EpisodeVariant, job: Job) -> float:
    return variant.ideal_seconds(job.seed, job.number) * (variant.num_steps + 1)


def _cpu_seconds() -> float:
    """Of this process and its children that have ended: the environments' processes have, when a run is over."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _result(run: EpisodeRun, job: Job, cpu_seconds: float) -> EpisodeResult:
    issued_ms = [
        record.timestamp_ms
        for record in run.read(run.topics.tasks, 1)
        for _ in tasks_in(decode(record.value or b""))
    ]
    samples = _samples(run.samples())
    begun_ms = min(issued_ms)
    if run.variant.num_steps == 1:
        ends_ms = [_completed_ms(samples, run.variant)]
    else:
        ends_ms = [moment for moment, found in run.ledger() if found.kind is LedgerKind.STEP]
    ends = [(moment - begun_ms) / 1000 * job.speed for moment in ends_ms]
    statuses = [sample.status for _, sample in samples]
    return EpisodeResult(
        seconds=seconds_of_a_step(ends),
        ideal_seconds=run.variant.ideal_seconds(job.seed, job.number),
        real_seconds=(ends_ms[-1] - begun_ms) / 1000,
        cpu_seconds=cpu_seconds,
        num_tasks=len(issued_ms),
        num_turns=sum(
            num_turns(sample.loss_mask) for _, sample in samples if sample.status is Status.FINISHED
        ),
        failed=statuses.count(Status.FAILED),
        cancelled=statuses.count(Status.CANCELLED),
        kills=sum(pool.counts.kills for pool in run.pools),
    )


def _samples(records: Iterable[Record]) -> list[tuple[int, Sample]]:
    """Samples with their append times in milliseconds, in order."""
    decoded = ((record.timestamp_ms, decode(record.value or b"")) for record in records)
    return [(moment, found) for moment, found in decoded if isinstance(found, Sample)]


def _completed_ms(samples: Iterable[tuple[int, Sample]], variant: EpisodeVariant) -> int:
    """Append time of the sample with which enough groups are complete. Raises BrokerTimeout where none is."""
    finished: defaultdict[int, set[int]] = defaultdict(set)
    num_complete = 0
    for moment, sample in samples:
        if sample.status is not Status.FINISHED:
            continue
        members = finished[sample.group_id]
        members.add(sample.replica)
        num_complete += len(members) == variant.group_size
        if num_complete == variant.num_groups:
            return moment
    raise BrokerTimeout(f"{num_complete} of {variant.num_groups} groups were complete when the run closed")
