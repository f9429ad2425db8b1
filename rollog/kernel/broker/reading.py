"""Reading what is stored: partitions from given offsets up to given ends.

Everything that looks at a topic once, and then is done with it, reads it with these loops. They raise BrokerTimeout
when reading stalls, that is when neither a record nor a position moves for `stall_seconds`; RegistryUnreachable and
RegistryRefused where it is the schema registry that they wait for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import BrokerTimeout, RegistryRefused, RegistryUnreachable, TopicMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rollog.kernel.broker.ports import Broker, Consumer, Record

stall_seconds = 60.0
poll_seconds = 0.1


@runtime_checkable
class HoldingConsumer(Protocol):
    """A consumer that needs more than the broker to read a record."""

    def held_back(self) -> RegistryUnreachable | RegistryRefused | None:
        """What else does not answer, where a partition stands still for it."""
        ...


def read_topic(broker: Broker, topic: str, *, client_id: str) -> Iterator[Record]:
    """Every committed record of a topic, partition after partition, up to their ends as each is reached.

    Raises TopicMismatch where there is no such topic.
    """
    with broker.admin() as admin:
        found = admin.describe_topics([topic])
    if topic not in found:
        raise TopicMismatch(
            f"topic {topic} does not exist at {broker.address}: what stood in it cannot be told; restore it, or ask an "
            "archive that was made while it was there"
        )
    with broker.consumer(client_id=client_id) as consumer:
        for partition in range(found[topic].num_partitions):
            yield from read_to_end(consumer, topic, partition)


def read_to_end(consumer: Consumer, topic: str, *partitions: int) -> Iterator[Record]:
    """Every committed record of some partitions up to the ends fetched now; in order within each partition."""
    places = [TopicPartition(topic, partition) for partition in partitions]
    ends = consumer.end_offsets(places)
    return read_until(consumer, consumer.beginning_offsets(places), ends)


def read_until(
    consumer: Consumer,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    stalls_after_seconds: float = stall_seconds,
) -> Iterator[Record]:
    """The committed records from `starts` up to `ends`, as they come; `consumer` is assigned these partitions."""
    consumer.assign(starts)
    for record in drain(consumer, ends, stalls_after_seconds=stalls_after_seconds):
        if record.offset < ends[place_of(record)]:
            yield record


def drain(
    consumer: Consumer, ends: Mapping[TopicPartition, int], *, stalls_after_seconds: float = stall_seconds
) -> Iterator[Record]:
    """What an assigned consumer returns until it has reached `ends`; records beyond them may be among it."""
    deadline = time.monotonic() + stalls_after_seconds
    before: dict[TopicPartition, int] = {}
    while missing := [place for place, end in ends.items() if consumer.position(place) < end]:
        yield from consumer.poll(poll_seconds)
        positions = {place: consumer.position(place) for place in missing}
        if positions != before:
            before, deadline = positions, time.monotonic() + stalls_after_seconds
        elif time.monotonic() > deadline:
            named = ", ".join(
                f"{place.topic}[{place.partition}] at offset {positions[place]} of {ends[place]}"
                for place in missing
            )
            told = f"nothing could be read for {stalls_after_seconds:g} s: {named}"
            cause = consumer.held_back() if isinstance(consumer, HoldingConsumer) else None
            if cause is not None:
                raise type(cause)(f"{told}; {cause}") from cause
            raise BrokerTimeout(f"{told}; check the broker and start again what was reading")


def place_of(record: Record) -> TopicPartition:
    """The partition a record was read from."""
    return TopicPartition(record.topic, record.partition)
