"""A read-only broker over an archive of a run: what `rollog export` wrote, under its original offsets.

It keeps the reading half of `rollog.kernel.broker.ports`. Nothing arrives any more, so polls do not wait; whatever
would write raises ArchiveError. Clients may live in different threads, each in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rollog.kernel.broker.archive_blocks import PartitionBlocks
from rollog.kernel.broker.archive_format import ArchiveFile, topic_member
from rollog.kernel.broker.closing import Closing
from rollog.kernel.broker.ports import TopicPartition, TopicSpec
from rollog.kernel.broker.read_only import ReadOnlyAdmin, ReadOnlyBroker
from rollog.kernel.broker.topics import RunTopics, broker_defaults
from rollog.kernel.errors import ArchiveError, BrokerError, TopicMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rollog.kernel.broker.archive_format import ArchivedPartition, ArchiveManifest, Member
    from rollog.kernel.broker.ports import Record
    from rollog.kernel.broker.rights import Right

_default_max_records = 2000
_most_bytes_at_once = 32 << 20


class ArchiveBroker(ReadOnlyBroker):
    """The topics of one archived run. Raises ArchiveError for a file that is damaged or was not made by rollog."""

    def __init__(self, path: str | Path) -> None:
        self.file = ArchiveFile(Path(path).absolute())
        self._blocks = {
            place: PartitionBlocks(self.file, place, partition)
            for place, partition in _partitions(self.manifest).items()
        }

    @property
    def manifest(self) -> ArchiveManifest:
        """What the archive holds."""
        return self.file.manifest

    @property
    def address(self) -> str:
        """The path of the archive."""
        return str(self.file.path)

    @property
    def principal(self) -> str | None:
        """Nobody: whoever can open the file can read it."""
        return None

    @property
    def topics(self) -> RunTopics:
        """Names of the archived run's topics."""
        return RunTopics(self.manifest.prefix, self.manifest.run)

    def consumer(self, *, client_id: str, group_id: str | None = None) -> ArchiveConsumer:
        """A consumer of the archived records."""
        del client_id, group_id
        return ArchiveConsumer(self)

    def admin(self) -> ArchiveAdmin:
        """What topics there are."""
        return ArchiveAdmin(self)

    def partition(self, place: TopicPartition) -> ArchivedPartition:
        """Raises TopicMismatch for one that is not in the archive."""
        topic = self.manifest.topics.get(place.topic)
        if topic is None:
            raise TopicMismatch(
                f"topic {place.topic} is not in archive {self.address}: is it of another run?"
            )
        if not 0 <= place.partition < len(topic.partitions):
            raise TopicMismatch(
                f"topic {place.topic} has partitions 0 to {len(topic.partitions) - 1} in archive {self.address}, "
                f"not {place.partition}"
            )
        return topic.partitions[place.partition]

    def blocks(self, place: TopicPartition) -> PartitionBlocks:
        """How to read one partition."""
        return self._blocks[place]

    def refuse(self, what: str) -> NoReturn:
        """Raise ArchiveError for what only a live broker does."""
        raise ArchiveError(f"archive {self.address} cannot be {what}: name a broker with --broker instead")


def _partitions(manifest: ArchiveManifest) -> dict[TopicPartition, ArchivedPartition]:
    return {
        TopicPartition(name, number): partition
        for name, topic in manifest.topics.items()
        for number, partition in enumerate(topic.partitions)
    }


@dataclass(slots=True)
class _Reading:
    """How far one partition has been read: the next offset, the next block, and what is left of the one before."""

    position: int
    next_block: int | None = None
    records: tuple[Record, ...] = ()


class ArchiveConsumer(Closing):
    """Reads assigned partitions from given offsets."""

    def __init__(self, broker: ArchiveBroker) -> None:
        super().__init__()
        self._broker = broker
        self._readings: dict[TopicPartition, _Reading] = {}
        self._file = broker.file.open()

    def close(self) -> None:
        """Close the archive."""
        super().close()
        self._file.close()

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from these offsets on."""
        self._require_open()
        for place in positions:
            self._broker.partition(place)
        kept = {
            place: reading
            for place, reading in self._readings.items()
            if positions.get(place) == reading.position
        }
        self._readings = {place: kept.get(place) or _Reading(offset) for place, offset in positions.items()}

    def poll(self, timeout_seconds: float, max_records: int | None = None) -> list[Record]:
        """Records in offset order per partition; an empty list, at once, when there are no more."""
        del timeout_seconds
        self._require_open()
        found: list[Record] = []
        wanted, num_bytes = max_records or _default_max_records, 0
        for place in list(self._readings):
            while len(found) < wanted and num_bytes < _most_bytes_at_once:
                records = self._read(place, wanted - len(found))
                if not records:
                    break
                found += records
                num_bytes += sum(len(record.value or b"") for record in records)
            # The one read comes last in the next round, so that a long partition hides no other.
            self._readings[place] = self._readings.pop(place)
            if len(found) >= wanted or num_bytes >= _most_bytes_at_once:
                break
        return found

    def position(self, partition: TopicPartition) -> int:
        """Next offset this consumer would return; behind the last record it is the end offset."""
        self._require_open()
        if partition not in self._readings:
            raise ValueError(f"{partition.topic} partition {partition.partition} is not assigned")
        return self._readings[partition].position

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Smallest offsets that could still be read when the run was exported."""
        self._require_open()
        return {place: self._broker.partition(place).beginning_offset for place in partitions}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets when the run was exported."""
        self._require_open()
        return {place: self._broker.partition(place).end_offset for place in partitions}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises ArchiveError."""
        self._require_open()
        del offsets
        self._broker.refuse("given consumer positions")

    def _read(self, place: TopicPartition, most: int) -> list[Record]:
        """The next records of one partition, from one block; none at its end."""
        reading, partition = self._readings[place], self._broker.partition(place)
        if not partition.beginning_offset <= reading.position <= partition.end_offset:
            raise BrokerError(
                f"reading {place.topic} partition {place.partition} at offset {reading.position}:"
                " the records there were deleted, or never existed"
            )
        self._fill(place, reading)
        found, reading.records = reading.records[:most], reading.records[most:]
        if reading.records:
            reading.position = reading.records[0].offset
        elif self._is_last(place, reading):
            reading.position = partition.end_offset
        elif found:
            reading.position = found[-1].offset + 1
        return list(found)

    def _fill(self, place: TopicPartition, reading: _Reading) -> None:
        """Decode the next block that holds something at or behind the position."""
        if reading.records:
            return
        blocks = self._broker.blocks(place)
        member = self._member(place)
        if reading.next_block is None:
            reading.next_block = blocks.first_at(member, reading.position)
        index = blocks.blocks(member)
        while not reading.records and reading.next_block < len(index):
            records = blocks.records(member, index[reading.next_block])
            reading.records = tuple(record for record in records if record.offset >= reading.position)
            reading.next_block += 1

    def _is_last(self, place: TopicPartition, reading: _Reading) -> bool:
        return reading.next_block == len(self._broker.blocks(place).blocks(self._member(place)))

    def _member(self, place: TopicPartition) -> Member:
        return self._broker.file.member(self._file, topic_member(place.topic, place.partition))


class ArchiveAdmin(ReadOnlyAdmin):
    """Topics of an archive."""

    def __init__(self, broker: ArchiveBroker) -> None:
        super().__init__(broker)
        self._broker = broker

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        """What the archive holds of `names`, with the settings the topics had."""
        self._require_open()
        return {
            name: TopicSpec(
                name=name,
                num_partitions=len(topic.partitions),
                replication_factor=topic.replication_factor,
                config={**broker_defaults, **topic.config},
            )
            for name, topic in self._broker.manifest.topics.items()
            if name in names
        }

    def list_topics(self) -> list[str]:
        """Names of all topics in the archive."""
        self._require_open()
        return sorted(self._broker.manifest.topics)

    def missing_rights(self, rights: Sequence[Right]) -> list[Right]:
        """None: whoever can open the file can read it."""
        del rights
        return []

    def broker_version(self) -> str:
        """There is none to tell."""
        self._require_open()
        return "unknown"
