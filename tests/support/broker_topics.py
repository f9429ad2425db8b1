"""What tests of brokers share: topics of their own, and reading a partition to its end."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import Broker, Consumer, Record, TopicPartition, TopicSpec
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def a_topic(broker: Broker, *, num_partitions: int = 1, **config: str) -> str:
    """A new topic with the broker's append time; settings are given with underscores for dots."""
    name = f"rollog-test.{uuid.uuid4().hex[:12]}"
    settings = {"message.timestamp.type": "LogAppendTime"}
    settings |= {key.replace("_", "."): value for key, value in config.items()}
    with broker.admin() as admin:
        admin.create_topics([TopicSpec(name=name, num_partitions=num_partitions, config=settings)])
    return name


@dataclass(frozen=True)
class ReadBack:
    """A broker to write to, and what then reads it: the same one, or an archive of its topics as they are now."""

    broker: Broker
    reader: Callable[[], Broker]

    def wait_for_end(self, place: TopicPartition, end: int) -> None:
        """Until the markers of finished transactions have arrived."""
        with self.broker.consumer(client_id="waiting") as consumer:
            wait_until(lambda: consumer.end_offsets([place])[place] == end, 20, f"end offset {end}")


def read_to_end(
    broker: Broker, topic: str, partitions: Iterable[int] = (0,), *, timeout_seconds: float = 30.0
) -> list[Record]:
    """All committed records that are there now."""
    with broker.consumer(client_id="reader") as consumer:
        wanted = [TopicPartition(topic, partition) for partition in partitions]
        consumer.assign(consumer.beginning_offsets(wanted))
        return drain(consumer, wanted, timeout_seconds=timeout_seconds)


def drain(
    consumer: Consumer, partitions: Sequence[TopicPartition], *, timeout_seconds: float = 30.0
) -> list[Record]:
    """Poll until the positions have reached the end offsets of now."""
    ends = consumer.end_offsets(partitions)
    records: list[Record] = []
    deadline = time.monotonic() + timeout_seconds
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        records += consumer.poll(0.2)
        assert time.monotonic() < deadline, f"read {len(records)} records, not to the end {ends}"
    return records


def values(records: Iterable[Record]) -> list[bytes | None]:
    """The values alone."""
    return [record.value for record in records]
