"""A run's topics copied, to be read with one thing changed: what an auditor finds when somebody has been at them.

It is a broker for readers: asking it for a producer is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, NoReturn

from rollog.kernel.broker.closing import Closing
from rollog.kernel.broker.ports import TopicPartition, TopicSpec
from rollog.kernel.broker.reading import read_until
from schemas import LedgerRecord
from schemas.codec import decode_as, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rollog.kernel.broker.ports import Broker, Record
    from rollog.kernel.broker.rights import Right

Records = dict[TopicPartition, list["Record"]]


@dataclass(frozen=True)
class RecordedTopics:
    """Records by partition, with the offsets they had.

    `begins` are the first ones left, `first_ends` the ends that each consumer finds when it asks for the first time.
    """

    records: Records
    ends: dict[TopicPartition, int]
    begins: dict[TopicPartition, int] = field(default_factory=dict)
    first_ends: dict[TopicPartition, int] = field(default_factory=dict)
    address: str = "recorded"
    principal: str | None = None

    @classmethod
    def copied(cls, broker: Broker, names: Iterable[str]) -> RecordedTopics:
        with broker.admin() as admin:
            specs = admin.describe_topics(list(names))
        places = [
            TopicPartition(spec.name, number)
            for spec in specs.values()
            for number in range(spec.num_partitions)
        ]
        records: Records = {place: [] for place in places}
        with broker.consumer(client_id="copier") as consumer:
            ends = consumer.end_offsets(places)
            for record in read_until(consumer, consumer.beginning_offsets(places), ends):
                records[TopicPartition(record.topic, record.partition)].append(record)
        return cls(records, ends)

    # Changes, each giving another copy

    def with_records(self, place: TopicPartition, records: Sequence[Record]) -> RecordedTopics:
        """One partition holds these instead."""
        end = max([self.ends[place], *(record.offset + 1 for record in records)])
        return replace(self, records=self.records | {place: list(records)}, ends=self.ends | {place: end})

    def with_value(self, record: Record, value: bytes | None) -> RecordedTopics:
        """One record has this value instead."""
        place = TopicPartition(record.topic, record.partition)
        changed = [
            replace(found, value=value) if found.offset == record.offset else found
            for found in self.records[place]
        ]
        return self.with_records(place, changed)

    def without(self, record: Record) -> RecordedTopics:
        """One record is gone, as if it had never been there."""
        place = TopicPartition(record.topic, record.partition)
        return self.with_records(place, [found for found in self.records[place] if found is not record])

    def with_more(self, place: TopicPartition, *values: bytes | None) -> RecordedTopics:
        """These stand at the end of a partition."""
        last = self.ends[place]
        template = self._any_record()
        more = [
            replace(template, topic=place.topic, partition=place.partition, offset=last + number, value=value)
            for number, value in enumerate(values)
        ]
        return self.with_records(place, [*self.records[place], *more])

    def truncated(self, place: TopicPartition, begin: int) -> RecordedTopics:
        """Retention has taken everything below `begin`."""
        kept = [record for record in self.records[place] if record.offset >= begin]
        return replace(self, records=self.records | {place: kept}, begins=self.begins | {place: begin})

    def growing(self, place: TopicPartition, first_end: int) -> RecordedTopics:
        """What stands from `first_end` on is written only after a reader has asked for the end once."""
        return replace(self, first_ends=self.first_ends | {place: first_end})

    def cut(self, place: TopicPartition, end: int) -> RecordedTopics:
        """Nothing from `end` on has been written yet."""
        kept = [record for record in self.records[place] if record.offset < end]
        return replace(self, records=self.records | {place: kept}, ends=self.ends | {place: end})

    def rechained(self, steps: str, edit: Callable[[LedgerRecord], LedgerRecord | None]) -> RecordedTopics:
        """Every ledger record edited, or left out, and the chain made anew: what one who can write all would do."""
        place = TopicPartition(steps, 0)
        head = bytes(32)
        written: list[Record] = []
        for record in self.records[place]:
            edited = edit(decode_as(LedgerRecord, record.value or b""))
            if edited is not None:
                value = encode(replace(edited, sequence=len(written), previous_hash=head))
                head = sha256(value).digest()
                written.append(replace(record, value=value))
        return self.with_records(place, written)

    def ledger(self, steps: str) -> list[LedgerRecord]:
        return [decode_as(LedgerRecord, record.value or b"") for record in self.all(steps)]

    def all(self, topic: str) -> list[Record]:
        """Everything on one topic, partition by partition."""
        return [
            record for place in sorted(self.records) if place.topic == topic for record in self.records[place]
        ]

    def _any_record(self) -> Record:
        return next(record for records in self.records.values() for record in records)

    # What readers ask for

    def consumer(self, *, client_id: str, group_id: str | None = None) -> RecordedConsumer:
        del client_id, group_id
        return RecordedConsumer(self)

    def admin(self) -> RecordedAdmin:
        return RecordedAdmin(self)

    def producer(self, **_: object) -> NoReturn:
        raise AssertionError("an auditor writes nothing")

    def transactional_producer(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("an auditor writes nothing")


class RecordedConsumer(Closing):
    """Reads the copy, a few records at a time."""

    def __init__(self, recorded: RecordedTopics) -> None:
        super().__init__()
        self._recorded = recorded
        self._positions: dict[TopicPartition, int] = {}
        self._first_ends = dict(recorded.first_ends)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._positions = dict(positions)

    def poll(self, timeout_seconds: float, max_records: int | None = None) -> list[Record]:
        del timeout_seconds
        found: list[Record] = []
        for place, position in self._positions.items():
            ahead = [record for record in self._recorded.records[place] if record.offset >= position]
            found += ahead[: max_records or 3]
            is_all = len(ahead) <= (max_records or 3)
            self._positions[place] = self._recorded.ends[place] if is_all else found[-1].offset + 1
        return found

    def position(self, partition: TopicPartition) -> int:
        return self._positions[partition]

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: self._recorded.begins.get(place, 0) for place in partitions}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: self._first_ends.pop(place, self._recorded.ends[place]) for place in partitions}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        raise AssertionError(f"an auditor commits nothing: {offsets}")


class RecordedAdmin(Closing):
    """Says which topics there are."""

    def __init__(self, recorded: RecordedTopics) -> None:
        super().__init__()
        self._recorded = recorded

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        counts = {name: sum(place.topic == name for place in self._recorded.records) for name in names}
        return {name: TopicSpec(name=name, num_partitions=count) for name, count in counts.items() if count}

    def list_topics(self) -> list[str]:
        return sorted({place.topic for place in self._recorded.records})

    def create_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        raise AssertionError(f"an auditor creates nothing: {specs}")

    def delete_topics(self, names: Sequence[str]) -> None:
        raise AssertionError(f"an auditor deletes nothing: {names}")

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> None:
        raise AssertionError(f"an auditor deletes nothing: {offsets}")

    def missing_rights(self, rights: Sequence[Right]) -> list[Right]:
        del rights
        return []

    def broker_version(self) -> str:
        return "recorded"
