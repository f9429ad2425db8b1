"""Whether a mirror has every record of the original, once, as it was: what is known of the original says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from consumers.audit.findings import Check, Place
from rollog.kernel.broker.mirror import same_names
from rollog.kernel.broker.offset_map import FaultKind
from rollog.kernel.broker.reading import read_to_end
from schemas import LedgerRecord
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from consumers.audit.report import AuditReport
    from rollog.kernel.broker.mirror import MirroredBroker
    from rollog.kernel.broker.offset_map import Fault
    from rollog.kernel.broker.ports import Broker, Record, TopicPartition
    from rollog.kernel.broker.topics import RunTopics

_messages = {
    FaultKind.LOST: ("the mirror does not have it, though it has later ones", "the record", "none"),
    FaultKind.NOT_YET: ("the mirror ends before it", "the record", "none"),
    FaultKind.DOUBLED: (
        "the mirror has it a second time; it is read once",
        "one",
        "another of the same bytes",
    ),
    FaultKind.ALTERED: ("the mirror has another record in its place", "the bytes of the original", "others"),
    FaultKind.ADDED: ("the original has no such record; it is not read", "none", "a record"),
}


def with_mirror(report: AuditReport, mirror: MirroredBroker, *, has_map: bool) -> AuditReport:
    """The report with what was found when the mirror was laid beside its original."""
    check = Check(
        name="mirror",
        what="the mirror has each record of the original once, with its bytes",
        unit="records of which the original is known",
    )
    for place, alignment in sorted(mirror.alignments.items()):
        check.num_checked += len(alignment.originals)
        for fault in alignment.faults:
            _find(check, mirror, place, fault)
    source = (
        "original offsets are those of the offset map"
        if has_map
        else "original offsets are those that the ledger names; those of steps are counted, and may be too small by "
        "aborted transactions; of topics but samples, rewards and steps the mirror's own stand, and only an offset map "
        "shows whether they are whole"
    )
    note = f"read from a mirror at {mirror.address}: {source}"
    return replace(report, checks=[*report.checks, check], notes=[*report.notes, note])


def _find(check: Check, mirror: MirroredBroker, place: TopicPartition, fault: Fault) -> None:
    message, expected, found = _messages[fault.kind]
    if fault.original is None:
        assert fault.mirrored is not None, "a fault has a place"
        where = Place(mirror.mirrored_name(place.topic), place.partition, fault.mirrored)
        check.find(f"{fault.kind} in the mirror: {message}", place=where, expected=expected, found=found)
        return
    if fault.mirrored is not None:
        found = f"{found}, at offset {fault.mirrored} of {mirror.mirrored_name(place.topic)}"
    where = Place(place.topic, place.partition, fault.original)
    check.find(f"{fault.kind} by the mirror: {message}", place=where, expected=expected, found=found)


def with_hint(report: AuditReport, broker: Broker, topics: RunTopics) -> AuditReport:
    """The report, with a note where something is off in what is a mirror of the run under its own names.

    Each ledger record ends a transaction, and a mirror has no markers of these.
    """
    if report.is_clean or not _has_no_markers(broker, topics):
        return report
    note = (
        f"{topics.steps} at {broker.address} has no markers of transactions, as a mirror of a run: read one with "
        f"--mirror {same_names}, which finds the original offsets again"
    )
    return replace(report, notes=[*report.notes, note])


def _has_no_markers(broker: Broker, topics: RunTopics) -> bool:
    with broker.consumer(client_id="audit-markers") as consumer:
        behind_last: int | None = None
        for record in read_to_end(consumer, topics.steps, 0):
            if behind_last is not None:
                return record.offset == behind_last
            if _ends_transaction(record):
                behind_last = record.offset + 1
    return False


def _ends_transaction(record: Record) -> bool:
    try:
        decoded = decode_as(LedgerRecord, record.value or b"")
    except SchemaError:
        return False
    return decoded.part == decoded.num_parts - 1
