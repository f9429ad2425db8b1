"""Positions of groups as ordinary tools see them, on both brokers."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import kafka
import pytest
from support.broker_topics import a_topic
from support.waiting import wait_until

from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import Broker, TopicPartition
from rollog.kernel.registry.framed_broker import FramedBroker

Positions = Callable[[str], dict[TopicPartition, int]]


@pytest.fixture
def committed(broker: Broker) -> Positions:
    """What a tool that is not ours reports for a group."""

    def positions(group_id: str) -> dict[TopicPartition, int]:
        inner = broker._inner if isinstance(broker, FramedBroker) else broker
        if isinstance(inner, MemoryBroker):
            return dict(inner.committed_offsets.get(group_id, {}))
        assert isinstance(broker, KafkaBroker)
        with kafka.KafkaAdminClient(bootstrap_servers=broker.address) as client:
            found = client.list_group_offsets([group_id])[group_id]
        return {TopicPartition(p.topic, p.partition): at.offset for p, at in found.items() if at.offset >= 0}

    return positions


def a_group() -> str:
    return f"rollog-test.{uuid.uuid4().hex[:12]}"


def test_offsets_of_a_transaction_are_visible_once_it_is_committed(
    broker: Broker, committed: Positions
) -> None:
    topic, group_id = a_topic(broker), a_group()
    partition = TopicPartition(topic, 0)
    with broker.transactional_producer(a_group()) as producer:
        producer.begin()
        producer.send(topic, 0, b"x")
        producer.send_offsets({partition: 7}, group_id)
        producer.commit(20)
        wait_until(lambda: committed(group_id) == {partition: 7}, message="committed offsets")
        producer.begin()
        producer.send_offsets({partition: 9}, group_id)
        producer.abort()
        producer.begin()
        producer.send_offsets({}, group_id)
        producer.commit(20)
    assert committed(group_id) == {partition: 7}


def test_a_consumer_commits_positions_in_the_background(broker: Broker, committed: Positions) -> None:
    topic, group_id = a_topic(broker, num_partitions=2), a_group()
    p0, p1 = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with broker.consumer(client_id="reader", group_id=group_id) as consumer:
        consumer.assign({p0: 0, p1: 0})
        consumer.commit({p0: 3, p1: 4})
        wait_until(lambda: committed(group_id) == {p0: 3, p1: 4}, message="committed positions")
        consumer.commit({p0: 5})
        wait_until(lambda: committed(group_id) == {p0: 5, p1: 4}, message="committed positions")


def test_positions_committed_just_before_closing_are_not_dropped(
    broker: Broker, committed: Positions
) -> None:
    topic, group_id = a_topic(broker), a_group()
    place = TopicPartition(topic, 0)
    with broker.consumer(client_id="reader", group_id=group_id) as consumer:
        consumer.assign({place: 0})
        consumer.commit({place: 3})
        consumer.commit({place: 4})
    assert committed(group_id) == {place: 4}


def test_a_consumer_without_a_group_has_nothing_to_commit_under(broker: Broker) -> None:
    topic = a_topic(broker)
    with broker.consumer(client_id="reader") as consumer, pytest.raises(ValueError, match="group"):
        consumer.commit({TopicPartition(topic, 0): 1})


def test_offsets_of_topics_not_asked_about_before_come_with_those_that_were(broker: Broker) -> None:
    known, new = a_topic(broker, num_partitions=2), a_topic(broker, num_partitions=2)
    with broker.consumer(client_id="test") as consumer:
        first = [TopicPartition(known, number) for number in range(2)]
        consumer.end_offsets(first)
        places = [*first, *(TopicPartition(new, number) for number in range(2))]
        assert consumer.end_offsets(places) == dict.fromkeys(places, 0)
        assert consumer.beginning_offsets(places) == dict.fromkeys(places, 0)
