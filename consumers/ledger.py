"""Reading the ledger (topic `steps`) from its beginning, with its chain verified.

Consumes `steps`, read_committed. A broken chain raises LedgerError: no reader goes on from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.broker.ports import TopicPartition
from rollog.errors import BrokerTimeout
from rollog.rules.reading import read_ledger_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.broker.ports import Broker, Consumer, Record
    from rollog.broker.topics import RunTopics
    from schemas import LedgerRecord

patience_polls = 200
poll_seconds = 0.1


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


def read_to_end(consumer: Consumer, topic: str, partition: int) -> Iterator[Record]:
    """Every committed record of one partition up to the end fetched now. Raises BrokerTimeout if it stalls."""
    place = TopicPartition(topic, partition)
    start = consumer.beginning_offsets([place])[place]
    end = consumer.end_offsets([place])[place]
    consumer.assign({place: start})
    idle = 0
    while consumer.position(place) < end:
        records = consumer.poll(poll_seconds)
        yield from (record for record in records if record.offset < end)
        idle = 0 if records else idle + 1
        if idle > patience_polls:
            raise BrokerTimeout(
                f"{topic}, partition {partition}: no record for {patience_polls * poll_seconds:.0f} s at offset "
                f"{consumer.position(place)} of {end}; check the broker and run the command again"
            )
