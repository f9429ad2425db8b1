"""Reading partitions up to given ends."""

from __future__ import annotations

import pytest
from support.broker_topics import a_topic, values

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import drain, read_to_end, read_until
from rollog.kernel.errors import BrokerTimeout


def written(broker: MemoryBroker, *, num_partitions: int = 1, num_records: int = 4) -> str:
    topic = a_topic(broker, num_partitions=num_partitions)
    with broker.producer(client_id="writer") as producer:
        for number in range(num_records):
            producer.send(topic, number % num_partitions, str(number).encode())
        producer.flush(1.0)
    return topic


def test_what_comes_after_the_ends_were_fetched_is_not_read(memory_broker: MemoryBroker) -> None:
    topic = written(memory_broker, num_partitions=2)
    with memory_broker.consumer(client_id="reader") as consumer:
        records = read_to_end(consumer, topic, 0, 1)
        with memory_broker.producer(client_id="writer") as producer:
            producer.send(topic, 0, b"later")
        assert set(values(records)) == {b"0", b"1", b"2", b"3"}


def test_reading_begins_and_ends_where_it_is_told_to(memory_broker: MemoryBroker) -> None:
    place = TopicPartition(written(memory_broker), 0)
    with memory_broker.consumer(client_id="reader") as consumer:
        assert values(read_until(consumer, {place: 1}, {place: 3})) == [b"1", b"2"]


def test_a_reader_that_goes_on_misses_nothing_behind_the_ends(memory_broker: MemoryBroker) -> None:
    place = TopicPartition(written(memory_broker), 0)
    with memory_broker.consumer(client_id="reader") as consumer:
        consumer.assign({place: 0})
        first = values(drain(consumer, {place: 1}))
        assert first + values(consumer.poll(0.0)) == [b"0", b"1", b"2", b"3"]


def test_reading_that_stalls_says_where() -> None:
    broker = MemoryBroker(block_seconds=0.0)
    place = TopicPartition(written(broker), 0)
    with broker.consumer(client_id="reader") as consumer:
        consumer.assign({place: 0})
        broker.pause()
        with pytest.raises(BrokerTimeout, match=r"\[0\] at offset 0 of 4"):
            list(drain(consumer, {place: 4}, stalls_after_seconds=0.0))
