"""What one run of a benchmark took, read from its log.

The figure is the time from the append of the first task to that of the sample that completes the last group of the
batch; of a run of several steps, the mean time between its steps.
"""

from __future__ import annotations

import secrets
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.simulated_run import SimulatedRun, num_prompts
from benchmarks.harness.workload import tokens_per_second
from benchmarks.scheduling.ideal import has_ideal, ideal_seconds
from benchmarks.scheduling.protection import longest_prompts, prompts_with_time_to_be_trained
from benchmarks.scheduling.run_result import RunResult
from benchmarks.scheduling.scoring import busy_share
from rollog.kernel.errors import BrokerTimeout
from rollog.rules.filtering import filter_reason
from schemas import Disposition, LedgerKind, LedgerRecord, Sample, Status, tasks_in
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.harness.variant import Job
    from rollog.kernel.broker.ports import Broker, Record
    from rollog.settings.groups import GroupConfig


def measure_run(job: Job, broker: Broker, home: Path) -> RunResult:
    """Make one run, and say what it took.

    Raises ValueError for more groups than there are prompts for, whatever ended a role, or BrokerTimeout when the run
    did not end in time.
    """
    variant, most_groups = job.variant, num_prompts // 4
    if variant.num_groups + variant.redundant_groups > most_groups:
        raise ValueError(f"{variant.name} collects {variant.num_groups} groups; {most_groups} are possible")
    run = SimulatedRun(job, broker, home / secrets.token_hex(4))
    try:
        run.create()
        with run.roles():
            run.wait_until_closed(_max_engine_seconds(job))
        return _result(run, job)
    finally:
        run.remove()


def _max_engine_seconds(job: Job) -> float:
    """After which the run has certainly gone wrong."""
    variant = job.variant
    if variant.num_steps > 1:
        return variant.num_steps * variant.longest_seconds * variant.last_worker_slowness
    return 4 * ideal_seconds(variant, job.workload)


def _result(run: SimulatedRun, job: Job) -> RunResult:
    variant = job.variant
    issued = [
        record
        for record in run.read(run.topics.tasks, variant.num_workers)
        for _ in tasks_in(decode(record.value or b""))
    ]
    if variant.num_steps > 1:
        return _result_of_steps(run, job, num_tasks=len(issued))
    samples = run.samples()
    completed_ms = _completed_ms(samples, run.sections.groups)
    milliseconds = completed_ms - min(record.timestamp_ms for record in issued)
    return RunResult(
        seconds=milliseconds / 1000 * job.speed,
        ideal_seconds=ideal_seconds(variant, job.workload),
        num_tasks=len(issued),
        busy_share=_busy_share(samples, job),
    )


def _busy_share(samples: Sequence[Record], job: Job) -> float:
    variant = job.variant
    if variant.warm_up_seconds is None:
        return 0.0
    return busy_share(
        list(_generated(samples, job)),
        num_slots=variant.num_workers * variant.slots_per_worker,
        warm_up_seconds=variant.warm_up_seconds / job.speed,
    )


def _generated(records: Iterable[Record], job: Job) -> Iterator[tuple[float, float]]:
    """Real seconds between which the engine made the tokens of each finished sample.

    They end its scoring before the append, and took as long as the engine takes for so many tokens.
    """
    for record in records:
        sample = decode(record.value or b"")
        if isinstance(sample, Sample) and sample.status is Status.FINISHED:
            end = record.timestamp_ms / 1000 - sample.timings.reward_seconds
            yield end - sample.num_tokens / tokens_per_second / job.speed, end


def _result_of_steps(run: SimulatedRun, job: Job, *, num_tasks: int) -> RunResult:
    ledger = run.ledger()
    stepped_ms = [timestamp for timestamp, found in ledger if found.kind is LedgerKind.STEP]
    longest = longest_prompts(job.workload, prompts_with_time_to_be_trained(job.variant))
    trained = trained_groups(found for _, found in ledger)
    return RunResult(
        seconds=(stepped_ms[-1] - stepped_ms[0]) / 1000 * job.speed / (len(stepped_ms) - 1),
        ideal_seconds=ideal_seconds(job.variant, job.workload) if has_ideal(job.variant) else 0.0,
        num_tasks=num_tasks,
        long_trained=fmean(group in trained for group in longest),
    )


def trained_groups(ledger: Iterable[LedgerRecord]) -> set[int]:
    """The groups that these records close as trained."""
    return {
        closed.group_id
        for record in ledger
        for closed in record.closed_groups
        if closed.outcome is Disposition.TRAINED
    }


def _completed_ms(records: Iterable[Record], groups: GroupConfig) -> int:
    """Append time of the sample with which enough groups are complete and pass.

    Raises BrokerTimeout when the log holds no full batch.
    """
    finished: dict[int, list[Sample]] = {}
    num_passed = 0
    for record in records:
        sample = decode(record.value or b"")
        if not isinstance(sample, Sample) or sample.status is not Status.FINISHED or sample.reward is None:
            continue
        members = finished.setdefault(sample.group_id, [])
        members.append(sample)
        if len(members) == groups.group_size and filter_reason(members, groups) is None:
            num_passed += 1
            if num_passed == groups.groups_per_batch:
                return record.timestamp_ms
    raise BrokerTimeout(
        f"{num_passed} of {groups.groups_per_batch} groups were complete when the run closed; see its log"
    )
