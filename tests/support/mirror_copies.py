"""Mirrors of recorded runs in memory: committed records in order, under other names and offsets; harm to them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.reading import read_to_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.ports import Broker, Record, TopicPartition

    Harm = Callable[[Record], list[Record]]


def unharmed(record: Record) -> list[Record]:
    """The record, once."""
    return [record]


def mirror_of(original: Broker, alias: str, harm: Harm = unharmed) -> MemoryBroker:
    """What MirrorMaker 2 makes of a cluster: no markers, no aborted records, offsets from 0 on."""
    mirror = MemoryBroker()
    with original.admin() as admin:
        specs = admin.describe_topics(admin.list_topics())
    with mirror.admin() as admin:
        admin.create_topics([replace(spec, name=f"{alias}.{spec.name}") for spec in specs.values()])
    with original.consumer(client_id="mirror") as consumer, mirror.producer(client_id="mirror") as producer:
        for spec in specs.values():
            for partition in range(spec.num_partitions):
                for record in read_to_end(consumer, spec.name, partition):
                    for sent in harm(record):
                        producer.send(
                            f"{alias}.{spec.name}", partition, sent.value, key=sent.key, headers=sent.headers
                        )
        producer.flush(20)
    return mirror


def at(place: TopicPartition, offset: int, copies: Callable[[Record], list[Record]]) -> Harm:
    """Harm to one record."""

    def harm(record: Record) -> list[Record]:
        is_meant = (record.topic, record.partition, record.offset) == (place.topic, place.partition, offset)
        return copies(record) if is_meant else [record]

    return harm


def lost(_record: Record) -> list[Record]:
    """Not there."""
    return []


def doubled(record: Record) -> list[Record]:
    """There twice."""
    return [record, record]


def altered(record: Record) -> list[Record]:
    """One bit of its last byte is another."""
    value = record.value or b"\0"
    return [replace(record, value=value[:-1] + bytes([value[-1] ^ 1]))]
