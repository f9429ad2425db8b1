"""Reading the ledger (topic `steps`) from its beginning, with its chain verified.

Consumes `steps`, read_committed. A broken chain raises LedgerError: no reader goes on from it. A long run has hundreds
of megabytes of verdicts: who needs them one record at a time goes over a `StoredLedger`, which keeps none.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.rules.ledger_chain import LedgerChain
from rollog.rules.ledger_state import LedgerState, no_hash
from rollog.rules.reading import read_ledger_record

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from rollog.kernel.broker.ports import Broker, Consumer, Record
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


class StoredLedger:
    """All committed ledger records up to the end of the topic when this is made, or those from `begin` on.

    `state` is the fold of what stands before `begin`. Each iteration reads anew and keeps nothing, so that going over
    it twice shows the same. Records that are not the ledger's are left out. Raises LedgerError, BrokerTimeout while it
    is gone over.
    """

    def __init__(
        self, broker: Broker, topics: RunTopics, *, begin: int = 0, state: LedgerState | None = None
    ) -> None:
        self._broker = broker
        self._place = TopicPartition(topics.steps, 0)
        self._behind = (0, no_hash) if state is None else (state.next_sequence, state.head)
        with self._consumer() as consumer:
            self._begin = max(begin, consumer.beginning_offsets([self._place])[self._place])
            self._end = consumer.end_offsets([self._place])[self._place]

    @property
    def end_offset(self) -> int:
        """Where it ended when this was made; 0 for a topic that nothing was ever written to."""
        return self._end

    def __iter__(self) -> Iterator[LedgerEntry]:
        chain = LedgerChain(*self._behind)
        for record in self._records(self._begin, self._end):
            found = chain.take(record)
            if found is not None:
                yield LedgerEntry(record=found[0], offset=record.offset, digest=found[1])

    def first(self) -> LedgerEntry | None:
        """The record it begins with."""
        return next(iter(self), None)

    def at(self, offset: int) -> LedgerEntry:
        """The record at an offset that going over it has shown."""
        with closing(self._records(offset, offset + 1)) as records:
            return ledger_entry(next(records))

    def _records(self, begin: int, end: int) -> Generator[Record, None, None]:
        with self._consumer() as consumer:
            yield from read_until(consumer, {self._place: begin}, {self._place: end})

    def _consumer(self) -> Consumer:
        return self._broker.consumer(client_id="ledger-reader")


def read_ledger(broker: Broker, topics: RunTopics) -> list[LedgerEntry]:
    """All committed ledger records up to the end of the topic at the time of the call, with all they hold."""
    return list(StoredLedger(broker, topics))


def folded(entries: Iterable[LedgerEntry]) -> LedgerState:
    """What the ledger says at its end. Raises LedgerError for a broken chain."""
    ledger = LedgerState()
    for entry in entries:
        ledger.apply(entry.record, entry.digest)
    return ledger
