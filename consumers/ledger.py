"""Reading the ledger (topic `steps`) from its beginning, with its chain verified.

Consumes `steps`, read_committed. A broken chain raises LedgerError: no reader goes on from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.broker.reading import read_to_end
from rollog.rules.ledger_state import LedgerState
from rollog.rules.reading import read_ledger_record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollog.kernel.broker.ports import Broker, Record
    from rollog.kernel.broker.topics import RunTopics
    from schemas import LedgerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One ledger record with its place and the sha256 of its value."""

    record: LedgerRecord
    offset: int
    digest: bytes


def ledger_entry(record: Record) -> LedgerEntry:
    """Decode one record of `steps`. Raises LedgerError."""
    decoded, digest = read_ledger_record(record)
    return LedgerEntry(record=decoded, offset=record.offset, digest=digest)


def read_ledger(broker: Broker, topics: RunTopics) -> list[LedgerEntry]:
    """All committed ledger records up to the end of the topic at the time of the call."""
    with broker.consumer(client_id="ledger-reader") as consumer:
        return [ledger_entry(record) for record in read_to_end(consumer, topics.steps, 0)]


def folded(entries: Iterable[LedgerEntry]) -> LedgerState:
    """What the ledger says at its end. Raises LedgerError for a broken chain."""
    ledger = LedgerState()
    for entry in entries:
        ledger.apply(entry.record, entry.digest)
    return ledger
