"""From stored records to what the rules judge: what trainer, dispatcher and auditors do alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.errors import LedgerError
from rollog.rules.headers import (
    SampleHeader,
    defective_header,
    header_of,
    header_of_summary,
    record_digest,
)
from rollog.rules.ledger_state import record_hash
from schemas import (
    DatasetEnd,
    DispatcherEpoch,
    Grant,
    LedgerRecord,
    Revoke,
    RunClosed,
    Sample,
    Stopped,
    TrainerEpoch,
)
from schemas.codec import SchemaError, decode, decode_as
from schemas.sample_summary import SampleSummary, summary_in

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Record
    from rollog.rules.headers import SampleLimits

ControlRecord = DispatcherEpoch | TrainerEpoch | Grant | Revoke | DatasetEnd | Stopped | RunClosed
control_types = (DispatcherEpoch, TrainerEpoch, Grant, Revoke, DatasetEnd, Stopped, RunClosed)


def read_sample(record: Record, limits: SampleLimits) -> tuple[SampleHeader, Sample | None]:
    """Decode and validate one record; a defect is named in the header, and there is then no sample."""
    try:
        if record.unread is not None:
            raise SchemaError(record.unread.reason)  # noqa: TRY301 - one way for all that is no sample
        sample = decode_as(Sample, record.value or b"")
    except SchemaError as error:
        header = defective_header(
            partition=record.partition,
            offset=record.offset,
            value=record.value,
            named=record.header,
            defect=f"not a sample: {error}",
        )
        return header, None
    header = header_of(
        sample,
        partition=record.partition,
        offset=record.offset,
        digest=record_digest(record.value),
        limits=limits,
    )
    return header, sample if header.defect is None else None


def read_summary(record: Record, limits: SampleLimits) -> tuple[SampleHeader, Sample | SampleSummary | None]:
    """What the record's Kafka headers say of it; the record itself, as `read_sample`, where they do not say enough.

    For who decides what is issued next. Headers can be wrong, as records can: what is trained, and what becomes of
    every record, is for the trainer to say, which reads the record.
    """
    summary = None if record.unread is not None else summary_in(record.headers)
    if summary is not None:
        header = header_of_summary(summary, partition=record.partition, offset=record.offset, limits=limits)
        if header is not None:
            return header, summary
    return read_sample(record, limits)


def decoded_ledger_record(record: Record) -> tuple[LedgerRecord, bytes]:
    """Decode what may be a record of the ledger; returns it with the sha256 of its value. Raises SchemaError."""
    if record.value is None:
        raise SchemaError("it has no value")
    return decode_as(LedgerRecord, record.value), record_hash(record.value)


def read_ledger_record(record: Record) -> tuple[LedgerRecord, bytes]:
    """Decode one record of `steps`; returns it with the sha256 of its value. Raises LedgerError."""
    place = f"{record.topic}, offset {record.offset}"
    if record.value is None:
        raise LedgerError(f"{place} has no value; a ledger is never compacted")
    try:
        return decoded_ledger_record(record)
    except SchemaError as error:
        raise LedgerError(
            f"{place} is not a ledger record ({error}); nothing can be trained on: restore the topic"
        ) from error


def control_record(record: Record) -> ControlRecord | None:
    """Decode one record of `control`; None for what is not one, which the dispatcher sets aside."""
    try:
        decoded = decode(record.value or b"")
    except SchemaError:
        return None
    return decoded if isinstance(decoded, control_types) else None
