"""Consumer and admin of the broker in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.broker.closing import Closing
from rollog.kernel.broker.ports import TopicSpec
from rollog.kernel.broker.topics import broker_defaults
from rollog.kernel.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.ports import Record, TopicPartition
    from rollog.kernel.broker.rights import Right

_default_max_records = 2000


class MemoryConsumer(Closing):
    """Reads assigned partitions from given offsets."""

    def __init__(self, broker: MemoryBroker, group_id: str | None) -> None:
        super().__init__()
        self._broker = broker
        self._group_id = group_id
        self._positions: dict[TopicPartition, int] = {}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from these offsets on."""
        self._require_open()
        for partition in positions:
            self._broker.log(partition.topic, partition.partition)
        self._positions = dict(positions)

    def poll(self, timeout_seconds: float, max_records: int | None = None) -> list[Record]:
        """Records in offset order per partition; an empty list when none came in time."""
        self._require_open()
        found: list[Record] = []

        def has_found() -> bool:
            if not self._broker.is_paused:
                found.extend(self._read(max_records or _default_max_records))
            return bool(found)

        self._broker.wait_for(has_found, timeout_seconds)
        return found

    def position(self, partition: TopicPartition) -> int:
        """Next offset this consumer would return; it moves past transaction markers as they are read."""
        self._require_open()
        if partition not in self._positions:
            raise ValueError(f"{partition.topic} partition {partition.partition} is not assigned")
        return self._positions[partition]

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Smallest offsets that can still be read."""
        self._require_open()
        self._broker.require_answer("asking for beginning offsets")
        with self._broker.condition:
            return {
                partition: self._broker.log(partition.topic, partition.partition).beginning_offset
                for partition in partitions
            }

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets, fetched now. Raises BrokerTimeout while the broker is paused."""
        self._require_open()
        self._broker.require_answer("asking for end offsets")
        with self._broker.condition:
            return {
                partition: self._broker.log(partition.topic, partition.partition).end_offset
                for partition in partitions
            }

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit positions under the group id."""
        self._require_open()
        if self._group_id is None:
            raise ValueError("this consumer has no group id to commit under")
        group_id, positions = self._group_id, dict(offsets)
        self._broker.request(lambda: self._broker.commit_offsets(group_id, positions))

    def _read(self, max_records: int) -> list[Record]:
        found: list[Record] = []
        for partition, position in list(self._positions.items()):
            log = self._broker.log(partition.topic, partition.partition)
            if not log.holds(position):
                raise BrokerError(
                    f"reading {partition.topic} partition {partition.partition} at offset {position}:"
                    " the records there were deleted, or never existed"
                )
            records, after = log.read(position, max_records - len(found))
            found += records
            # The last one read comes last in the next round, so that a busy partition hides no other.
            del self._positions[partition]
            self._positions[partition] = after
            if len(found) >= max_records:
                break
        return found


class MemoryAdmin(Closing):
    """Topics of a broker in memory."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__()
        self._broker = broker

    def create_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Create those that are missing; returns the names created."""
        self._require_answer()
        with self._broker.condition:
            missing = [spec for spec in specs if spec.name not in self._broker.topics]
            for spec in missing:
                self._broker.add_topic(spec)
        return [spec.name for spec in missing]

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        """What exists of `names`, with the settings rollog has an opinion on."""
        self._require_answer()
        with self._broker.condition:
            existing = {name: self._broker.topics[name].spec for name in names if name in self._broker.topics}
        return {
            name: TopicSpec(
                name=name,
                num_partitions=spec.num_partitions,
                replication_factor=spec.replication_factor,
                config={**broker_defaults, **spec.config},
            )
            for name, spec in existing.items()
        }

    def list_topics(self) -> list[str]:
        """Names of all topics."""
        self._require_answer()
        with self._broker.condition:
            return sorted(self._broker.topics)

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete those of `names` that exist, with all their records."""
        self._require_answer()
        with self._broker.condition:
            for name in names:
                self._broker.topics.pop(name, None)

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete the records below these offsets; all of them, or none when one cannot be."""
        self._require_answer()
        with self._broker.condition:
            logs = {place: self._broker.log(place.topic, place.partition) for place in offsets}
            for place, offset in offsets.items():
                if not 0 <= offset <= logs[place].next_offset:
                    raise BrokerError(
                        f"deleting records of {place.topic} partition {place.partition} below offset {offset}: the "
                        f"partition ends at {logs[place].next_offset}"
                    )
            for place, offset in offsets.items():
                logs[place].delete_below(offset)

    def missing_rights(self, rights: Sequence[Right]) -> list[Right]:
        """None: everybody may do everything here."""
        del rights
        return []

    def broker_version(self) -> str:
        """There is none to tell."""
        self._require_answer()
        return "unknown"

    def _require_answer(self) -> None:
        self._require_open()
        self._broker.require_answer("administration of topics")
