"""What one run of a benchmark took, read from its log.

The figure is the time from the append of the first task to that of the sample that completes the last group of the
batch; of a run of several steps, the mean time between its steps.
"""

from __future__ import annotations

import secrets
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.run_result import Collected
from benchmarks.harness.simulated_run import SimulatedRun, num_prompts
from benchmarks.scheduling.protection import longest_prompts, prompts_with_time_to_be_trained
from rollog.kernel.errors import BrokerTimeout
from rollog.rules.filtering import filter_reason
from schemas import Disposition, LedgerKind, LedgerRecord, RolloutTask, Sample, Status
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from benchmarks.harness.workload_seeds import Draw
    from benchmarks.scheduling.variants import Variant
    from rollog.kernel.broker.ports import Broker, Record
    from rollog.settings.groups import GroupConfig


def collect_batch(variant: Variant, draw: Draw, broker: Broker, home: Path, *, speed: float) -> Collected:
    """Run one draw in one way; `speed` is how many engine seconds pass in a real one.

    Raises ValueError for more groups than there are prompts for, whatever ended a role, or BrokerTimeout when the run
    did not end in time.
    """
    most_groups = num_prompts // 4
    if variant.num_groups + variant.redundant_groups > most_groups:
        raise ValueError(f"{variant.name} collects {variant.num_groups} groups; {most_groups} are possible")
    run = SimulatedRun(variant, draw, broker, home / secrets.token_hex(4), speed)
    try:
        run.create()
        with run.roles():
            run.wait_until_closed()
        return _collected(run, variant, draw, speed)
    finally:
        run.remove()


def _collected(run: SimulatedRun, variant: Variant, draw: Draw, speed: float) -> Collected:
    issued = [
        record
        for record in run.read(run.topics.tasks, variant.num_workers)
        if isinstance(decode(record.value or b""), RolloutTask)
    ]
    if variant.num_steps > 1:
        return _of_steps(run, variant, draw, speed, num_tasks=len(issued))
    completed_ms = _completed_ms(run.samples(), run.sections.groups)
    milliseconds = completed_ms - min(record.timestamp_ms for record in issued)
    return Collected(
        seconds=milliseconds / 1000 * speed,
        ideal_seconds=variant.ideal_seconds(draw),
        num_tasks=len(issued),
    )


def _of_steps(run: SimulatedRun, variant: Variant, draw: Draw, speed: float, *, num_tasks: int) -> Collected:
    ledger = run.ledger()
    stepped_ms = [timestamp for timestamp, found in ledger if found.kind is LedgerKind.STEP]
    num_seen = prompts_with_time_to_be_trained(variant)
    trained = trained_groups(found for _, found in ledger)
    return Collected(
        seconds=(stepped_ms[-1] - stepped_ms[0]) / 1000 * speed / (len(stepped_ms) - 1),
        ideal_seconds=variant.ideal_seconds(draw) if variant.has_ideal else 0.0,
        num_tasks=num_tasks,
        long_trained=fmean(group in trained for group in longest_prompts(draw, num_seen)),
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
