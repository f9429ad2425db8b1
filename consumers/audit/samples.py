"""Records of `samples` and what must have become of them, from the table of dispositions alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from typing import TYPE_CHECKING

from schemas import Disposition, Kind, LedgerKind, Sample, Status, sample_id
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from consumers.audit.config import AuditConfig
    from consumers.audit.judged import Judged
    from consumers.audit.ledger_index import Entry, LedgerIndex
    from rollog.kernel.broker.ports import Record
    from schemas import Segment

num_digest_bytes = 16
"""Bytes of the sha256 of a record's value that the ledger keeps."""

_of_status = {
    Status.FAILED: Disposition.FAILED,
    Status.LOST: Disposition.LOST,
    Status.CANCELLED: Disposition.CANCELLED,
    Status.EXPIRED: Disposition.CANCELLED,
}
_stale_cancel = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSample:
    """One record of `samples`, its digest, and why nothing can be made of it, if so."""

    partition: int
    offset: int
    digest: bytes
    sample: Sample | None
    defect: str | None

    @property
    def is_finished(self) -> bool:
        """Whether it is a finished rollout that can be trained."""
        return self.defect is None and self.sample is not None and self.sample.status is Status.FINISHED


def recorded_sample(record: Record, num_partitions: int, config: AuditConfig) -> RecordedSample:
    """One record, decoded if that is possible."""
    value = record.value or b""
    sample: Sample | None = None
    try:
        sample = decode_as(Sample, value)
        defect = _defect(sample, record.partition, num_partitions, config)
    except SchemaError as error:
        defect = f"not a sample: {error}"
    return RecordedSample(
        partition=record.partition,
        offset=record.offset,
        digest=sha256(value).digest()[:num_digest_bytes],
        sample=sample,
        defect=defect,
    )


def lag_bound(alpha: float) -> int:
    """The largest lag that may be trained: ceil(alpha)."""
    return math.ceil(alpha)


def lag_quota(alpha: float, groups_per_batch: int) -> int | None:
    """How many groups of a batch may have the largest lag, floor(f B); None if alpha is whole."""
    fraction = Fraction(str(alpha)) % 1
    return math.floor(fraction * groups_per_batch) if fraction else None


def possible_dispositions(
    recorded: RecordedSample, judged: Judged, entry: Entry, ledger: LedgerIndex
) -> frozenset[Disposition] | None:
    """The dispositions that a record can have got from `entry`; None where that cannot be told.

    First match wins, as in the table of docs/protocol.md. What the batch leaves open (which fresh samples of a
    complete group go in) stays open here.
    """
    sample = recorded.sample
    if recorded.defect is not None or sample is None:
        return frozenset({Disposition.DEAD})
    if sample.status is not Status.FINISHED:
        is_stale = (
            sample.cancel_reason == _stale_cancel and _of_status[sample.status] is Disposition.CANCELLED
        )
        return frozenset({Disposition.STALE if is_stale else _of_status[sample.status]})
    if not entry.knows_past or entry.version is None or entry.alpha is None:
        return None
    return _of_history(sample, entry, ledger) or _of_batch(sample, judged, entry, ledger, entry.alpha)


def _of_history(sample: Sample, entry: Entry, ledger: LedgerIndex) -> frozenset[Disposition] | None:
    """What the records before `entry` make of a finished sample; None if it is a fresh candidate to them."""
    assert entry.version is not None
    assert entry.alpha is not None
    trained_by = ledger.trained.by(sample.group_id, sample.replica)
    closed_by, _ = ledger.closed_groups.get(sample.group_id, (entry.index, None))
    if trained_by is not None and trained_by < entry.index:
        return frozenset({Disposition.DUPLICATE})
    if closed_by < entry.index:
        return frozenset({Disposition.REDUNDANT})
    is_known = _has_known_weights(sample, entry.version, ledger)
    is_fresh = is_known and lag_of(sample, entry.version) <= lag_bound(entry.alpha)
    return None if is_fresh else frozenset({Disposition.STALE})


def _of_batch(
    sample: Sample, judged: Judged, entry: Entry, ledger: LedgerIndex, alpha: float
) -> frozenset[Disposition]:
    """What `entry` itself can make of a fresh candidate: at the largest lag of a fractional alpha it may be stale."""
    closed_by, outcome = ledger.closed_groups.get(sample.group_id, (None, None))
    is_replica_trained = ledger.trained.by(sample.group_id, sample.replica) == entry.index
    possible = _of_outcome(outcome if closed_by == entry.index else None, judged, is_replica_trained)
    if entry.record.kind is LedgerKind.CLOSE:
        possible |= {Disposition.INCOMPLETE}
    if sample.awaits_reward and sample.reward is None:
        possible |= {Disposition.UNREWARDED}
    if Fraction(str(alpha)) % 1 and lag_of(sample, entry.version or 0) == lag_bound(alpha):
        possible |= {Disposition.STALE}
    return possible


def lag_of(sample: Sample, version: int) -> int:
    """Versions between the oldest segment of any sequence of a finished sample and the one that consumed it."""
    return version - min(segment.version for segment in segments_of(sample))


def segments_of(sample: Sample) -> list[Segment]:
    """Those of all its sequences."""
    return [*sample.segments, *(segment for fork in sample.forks for segment in fork.segments)]


def _of_outcome(
    outcome: Disposition | None, judged: Judged, is_replica_trained: bool
) -> frozenset[Disposition]:
    """What can become of a fresh sample whose group closes in the same record with this outcome."""
    match outcome:
        case Disposition.TRAINED if judged.disposition is Disposition.TRAINED:
            return frozenset({Disposition.TRAINED})
        case Disposition.TRAINED:
            return frozenset({Disposition.DUPLICATE if is_replica_trained else Disposition.REDUNDANT})
        case Disposition.FILTERED | Disposition.INCOMPLETE:
            return frozenset({outcome, Disposition.REDUNDANT})
    return frozenset()


def _has_known_weights(sample: Sample, version: int, ledger: LedgerIndex) -> bool:
    return all(
        segment.version <= version and ledger.knows(segment.version, segment.weights_digest)
        for segment in segments_of(sample)
    )


def _defect(sample: Sample, partition: int, num_partitions: int, config: AuditConfig) -> str | None:
    """Why a record that could be decoded does not belong where it is, or is not what it says."""
    is_finished, num_replicas = sample.status is Status.FINISHED, config.num_replicas
    faults = {
        f"kind {sample.kind}": sample.kind is not Kind.TRAINING,
        f"group {sample.group_id}, replica {sample.replica}": min(sample.group_id, sample.replica) < 0,
        f"replica {sample.replica} of {num_replicas}": num_replicas is not None
        and sample.replica >= num_replicas,
        f"group {sample.group_id} on partition {partition}": sample.group_id % num_partitions != partition,
        f"reward {sample.reward}": is_finished
        and not (config.has_late_rewards and sample.awaits_reward and sample.reward is None)
        and not math.isfinite(math.nan if sample.reward is None else sample.reward),
        f"temperature {sample.temperature}": is_finished
        and config.temperature is not None
        and not math.isclose(sample.temperature, config.temperature, rel_tol=1e-5),
        f"waits as {sample.sample_id}": is_finished and _waits_under_another_name(sample),
        "no segment": is_finished and not segments_of(sample),
    }
    return next((fault for fault, is_so in faults.items() if is_so), None)


def _waits_under_another_name(sample: Sample) -> bool:
    """A reward is found by the name that group, replica and attempt give its sample."""
    name = sample_id(sample.group_id, sample.replica, sample.attempt)
    return sample.awaits_reward and sample.reward is None and sample.sample_id != name
