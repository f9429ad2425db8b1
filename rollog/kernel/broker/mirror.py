"""A mirrored run, read as if it were the original: its topics by their own names, its records at their own offsets.

It keeps the reading half of `rollog.kernel.broker.ports`; whatever would write raises BrokerError. What is known of the
original comes from outside, a partition at a time (`Originals`); a partition is laid beside it when it is first asked
for, which reads it once. Of a partition without any the mirror's own offsets stand.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from rollog.kernel.broker.closing import Closing
from rollog.kernel.broker.offset_map import align
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.read_only import ReadOnlyAdmin, ReadOnlyBroker
from rollog.kernel.broker.reading import read_until
from rollog.kernel.broker.rights import Resource
from rollog.kernel.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rollog.kernel.broker.offset_map import Alignment, Originals
    from rollog.kernel.broker.ports import (
        Admin,
        Broker,
        Consumer,
        Record,
        TopicSpec,
    )
    from rollog.kernel.broker.rights import Right

same_names = "same-names"
"""The alias of a mirror that leaves topic names as they are (MirrorMaker 2's IdentityReplicationPolicy)."""


class MirroredBroker(ReadOnlyBroker):
    """A mirror of a run on another cluster.

    `alias` is what stands before a dot and the topic's name there, or `same_names`. `originals` says what is known of
    one partition of the original, by its own name.
    """

    def __init__(
        self,
        mirror: Broker,
        alias: str,
        originals: Callable[[TopicPartition], Originals | None] = lambda _: None,
    ) -> None:
        self._mirror = mirror
        self._prefix = "" if alias == same_names else f"{alias}."
        self._originals = originals
        self._alignments: dict[TopicPartition, Alignment | None] = {}
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """That of the mirror."""
        return self._mirror.address

    @property
    def principal(self) -> str | None:
        """Who reads the mirror."""
        return self._mirror.principal

    @property
    def mirror(self) -> Broker:
        """The cluster with the mirror."""
        return self._mirror

    @property
    def alignments(self) -> Mapping[TopicPartition, Alignment]:
        """Of every partition that was asked for and of which the original is known."""
        return {place: found for place, found in self._alignments.items() if found is not None}

    def knowing(self, originals: Callable[[TopicPartition], Originals | None]) -> MirroredBroker:
        """The same mirror, with what is known of the original."""
        found = MirroredBroker(self._mirror, same_names, originals)
        found._prefix = self._prefix
        return found

    def mirrored_name(self, topic: str) -> str:
        """What the mirror calls a topic."""
        return self._prefix + topic

    def original_name(self, topic: str) -> str | None:
        """What the original calls a topic of the mirror; None of one that is not mirrored from there."""
        return topic.removeprefix(self._prefix) if topic.startswith(self._prefix) else None

    def mirrored_place(self, place: TopicPartition) -> TopicPartition:
        """Where the mirror has a partition."""
        return TopicPartition(self.mirrored_name(place.topic), place.partition)

    def alignment(self, place: TopicPartition) -> Alignment | None:
        """How offsets of a partition belong together; None where they are the mirror's own."""
        with self._lock:
            if place not in self._alignments:
                self._alignments[place] = self._aligned(place)
            return self._alignments[place]

    def _aligned(self, place: TopicPartition) -> Alignment | None:
        known = self._originals(place)
        if known is None:
            return None
        mirrored = self.mirrored_place(place)
        with self._mirror.consumer(client_id="mirror") as consumer:
            begins, ends = consumer.beginning_offsets([mirrored]), consumer.end_offsets([mirrored])
            records = read_until(consumer, begins, ends)
            stored = [(record.offset, known.digest(record)) for record in records]
        return align(known, stored, mirrored_end=ends[mirrored], is_cut=begins[mirrored] > 0)

    def consumer(self, *, client_id: str, group_id: str | None = None) -> MirroredConsumer:
        """A consumer of the mirrored records; it commits no positions."""
        del group_id
        return MirroredConsumer(self, self._mirror.consumer(client_id=client_id))

    def admin(self) -> MirroredAdmin:
        """What topics there are."""
        return MirroredAdmin(self, self._mirror.admin())

    def refuse(self, what: str) -> NoReturn:
        """Raise BrokerError for what would change the mirror."""
        raise BrokerError(
            f"the mirror at {self.address} cannot be {what}: leave out --mirror, or name the original with --broker"
        )


class MirroredConsumer(Closing):
    """Reads assigned partitions from given original offsets."""

    def __init__(self, broker: MirroredBroker, consumer: Consumer) -> None:
        super().__init__()
        self._broker = broker
        self._consumer = consumer

    def close(self) -> None:
        """End the connection."""
        super().close()
        self._consumer.close()

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from these original offsets on."""
        self._require_open()
        self._consumer.assign(
            {
                self._broker.mirrored_place(place): offset if found is None else found.to_mirrored(offset)
                for place, offset in positions.items()
                for found in [self._broker.alignment(place)]
            }
        )

    def poll(self, timeout_seconds: float, max_records: int | None = None) -> list[Record]:
        """Records at their original offsets; those that the original has not are passed over."""
        self._require_open()
        seen = (self._seen(record) for record in self._consumer.poll(timeout_seconds, max_records))
        return [record for record in seen if record is not None]

    def _seen(self, record: Record) -> Record | None:
        name = self._broker.original_name(record.topic)
        assert name is not None, "a consumer reads what it was assigned"
        found = self._broker.alignment(TopicPartition(name, record.partition))
        offset = record.offset if found is None else found.original_of(record.offset)
        return None if offset is None else replace(record, topic=name, offset=offset)

    def position(self, partition: TopicPartition) -> int:
        """Original offset of the next record that this consumer would return; at the end, the end offset."""
        self._require_open()
        position = self._consumer.position(self._broker.mirrored_place(partition))
        found = self._broker.alignment(partition)
        return position if found is None else found.to_original(position)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Smallest original offsets that can still be read."""
        return self._offsets(partitions, self._consumer.beginning_offsets, lambda found, _: found.begin)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Original offsets behind the last mirrored records, and behind the markers that followed them."""
        return self._offsets(
            partitions,
            self._consumer.end_offsets,
            lambda found, end: found.end + max(0, end - found.mirrored_end),
        )

    def _offsets(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[Iterable[TopicPartition]], dict[TopicPartition, int]],
        seen: Callable[[Alignment, int], int],
    ) -> dict[TopicPartition, int]:
        self._require_open()
        places = {place: self._broker.mirrored_place(place) for place in partitions}
        alignments = {place: self._broker.alignment(place) for place in places}
        offsets = ask(places.values())
        return {
            place: offsets[mirrored]
            if (found := alignments[place]) is None
            else seen(found, offsets[mirrored])
            for place, mirrored in places.items()
        }

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises BrokerError."""
        self._require_open()
        del offsets
        self._broker.refuse("given consumer positions")


class MirroredAdmin(ReadOnlyAdmin):
    """Topics of a mirror, by their original names."""

    def __init__(self, broker: MirroredBroker, admin: Admin) -> None:
        super().__init__(broker)
        self._broker = broker
        self._admin = admin

    def close(self) -> None:
        """End the connection."""
        super().close()
        self._admin.close()

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        """What exists of `names`."""
        self._require_open()
        found = self._admin.describe_topics([self._broker.mirrored_name(name) for name in names])
        return {
            name: replace(found[mirrored], name=name)
            for name in names
            if (mirrored := self._broker.mirrored_name(name)) in found
        }

    def list_topics(self) -> list[str]:
        """Original names of all mirrored topics."""
        self._require_open()
        names = (self._broker.original_name(topic) for topic in self._admin.list_topics())
        return [name for name in names if name is not None]

    def missing_rights(self, rights: Sequence[Right]) -> list[Right]:
        """Those that are missing on the mirror's topics, by their original names."""
        self._require_open()
        mirrored = {
            replace(right, name=self._broker.mirrored_name(right.name))
            if right.resource is Resource.TOPIC
            else right: right
            for right in rights
        }
        return [mirrored[right] for right in self._admin.missing_rights(list(mirrored))]

    def broker_version(self) -> str:
        """That of the cluster with the mirror."""
        self._require_open()
        return self._admin.broker_version()
