"""What a fault costs: rollouts whose generation was thrown away because of it, in seconds of generation.

Read from the raw records of a run that is over. An attempt counts as lost where no record of it was used, trained or
filtered, and a fault is why: its worker was lost, it expired, failed or was cancelled, or it came second because the
dispatcher had ordered another attempt of a replica that it took for lost. Attempts that are merely too old (`stale`)
count for nobody: they occur without faults as well. Nor do those that end when the run is stopped on purpose.

Seconds of an attempt are those that its record names, or, where its worker never wrote one, those from the append of
its task to the fault: the time that it waited for its slot included, so rather too many than too few.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.raw_log import Decoder
from benchmarks.harness.figures import bootstrap_interval, rounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.chaos.mixed_run import Happened
    from benchmarks.chaos.raw_log import Raw

Attempt = tuple[str, int]
"""Task and replica."""
_used = frozenset({"trained", "filtered"})
_by_a_fault = frozenset({"lost", "failed", "cancelled", "duplicate", "redundant"})


@dataclass(slots=True)
class _Records:
    """The records of one attempt: the samples with what became of them, and when they were appended."""

    samples: list[tuple[Mapping[str, Any], str, float]] = field(default_factory=list)

    @property
    def is_lost(self) -> bool:
        found = {disposition for _, disposition, _ in self.samples}
        return not found & _used and bool(found & _by_a_fault)

    @property
    def seconds(self) -> float | None:
        """Of generation, where its worker wrote them."""
        own = [sample for sample, _, _ in self.samples if sample["status"] != "lost"]
        return own[-1]["timings"]["generation_seconds"] if own else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCost:
    """What one fault cost: attempts thrown away, and seconds of their generation."""

    fault: Happened
    num_attempts: int
    seconds: float
    seconds_to_next_version: float | None
    """Until the next step was appended to the ledger, from the beginning of a pause."""


def cost_of(
    happened: Sequence[Happened],
    *,
    tasks: Iterable[Raw],
    samples: Iterable[Raw],
    workers: Iterable[Raw],
    steps: Sequence[Raw],
    until: float,
) -> list[FaultCost]:
    """The cost of each fault of one run, in their order; `until` is when it was stopped on purpose."""
    decoder = Decoder()
    ordered = {
        task["task_id"]: raw.appended
        for raw, name, task in _decoded(decoder, tasks)
        if name == "RolloutTask" and task["kind"] == "training"
    }
    pids = {
        status["worker_id"]: status["pid"]
        for _, name, status in _decoded(decoder, workers)
        if name == "WorkerStatus"
    }
    made = [raw.appended for raw, _, record in _decoded(decoder, steps) if record.get("kind") == "step"]
    costs: dict[int, list[float]] = defaultdict(list)
    for (task_id, _), records in _attempts(decoder, samples, steps).items():
        sample, _, appended = records.samples[0]
        if not records.is_lost or appended >= until:
            continue
        cause = _cause(happened, pids.get(sample["worker_id"]), appended)
        if cause is None:
            continue
        begun = ordered.get(task_id, appended)
        seconds = records.seconds
        costs[cause].append(max(0.0, happened[cause].at - begun) if seconds is None else seconds)
    return [
        FaultCost(
            fault=fault,
            num_attempts=len(costs[number]),
            seconds=sum(costs[number]),
            seconds_to_next_version=min((at - fault.at for at in made if at > fault.at), default=None),
        )
        for number, fault in enumerate(happened)
    ]


def _attempts(decoder: Decoder, samples: Iterable[Raw], steps: Iterable[Raw]) -> dict[Attempt, _Records]:
    dispositions = {
        (verdict["partition"], verdict["offset"]): verdict["disposition"]
        for _, name, record in _decoded(decoder, steps)
        if name == "LedgerRecord"
        for verdict in record["verdicts"]
    }
    found: defaultdict[Attempt, _Records] = defaultdict(_Records)
    for raw, name, sample in _decoded(decoder, samples):
        if name == "Sample":
            disposition = dispositions.get((raw.partition, raw.offset), "")
            found[sample["task_id"], sample["replica"]].samples.append((sample, disposition, raw.appended))
    return dict(found)


def _cause(happened: Sequence[Happened], pid: int | None, appended: float) -> int | None:
    """The newest fault before that which met the attempt's worker, else the newest one of all."""
    before = [number for number, fault in enumerate(happened) if fault.at <= appended]
    own = [number for number in before if pid in happened[number].pids]
    return max(own or before, default=None)


def _decoded(decoder: Decoder, raws: Iterable[Raw]) -> Iterable[tuple[Raw, str, Mapping[str, Any]]]:
    for raw in raws:
        try:
            name, fields = decoder.decode(raw.value)
        except ValueError:
            continue  # tombstones; the recount names what must not be there
        yield raw, name, fields


def cost_table(costs: Iterable[FaultCost]) -> list[dict[str, Any]]:
    """By kind and target, and by kind alone: faults, attempts and seconds lost by each, with a 95 % interval."""
    rows: defaultdict[tuple[str, str], list[FaultCost]] = defaultdict(list)
    for cost in costs:
        rows[str(cost.fault.kind), "any"].append(cost)
        rows[str(cost.fault.kind), str(cost.fault.target)].append(cost)
    return [
        {
            "fault": kind,
            "target": target,
            "num_faults": len(group),
            "attempts_lost_by_fault": round(fmean(cost.num_attempts for cost in group), 2),
            "seconds_lost_by_fault": round(fmean(cost.seconds for cost in group), 3),
            "interval": rounded(bootstrap_interval([cost.seconds for cost in group], fmean)),
            "most_seconds": round(max(cost.seconds for cost in group), 3),
            "seconds_to_next_version": _recovery(group),
        }
        for (kind, target), group in sorted(rows.items())
    ]


def _recovery(costs: Sequence[FaultCost]) -> float | None:
    """Mean over the faults; the next fault may have come before that version."""
    seconds = [cost.seconds_to_next_version for cost in costs]
    known = [value for value in seconds if value is not None]
    return round(fmean(known), 1) if known else None
