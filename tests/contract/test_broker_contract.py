"""What every broker promises about records, consumers and topics; both implementations run all of it."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from support.broker_topics import a_topic, drain, read_to_end
from support.waiting import wait_until

from rollog.kernel.broker.limits import record_bytes
from rollog.kernel.broker.ports import Broker, TopicPartition, TopicSpec
from rollog.kernel.errors import RecordTooLarge, TopicMismatch

if TYPE_CHECKING:
    from rollog.kernel.broker.kafka import KafkaBroker


def test_time_stamps_are_the_brokers(broker: Broker) -> None:
    topic = a_topic(broker)
    before = time.time() * 1000
    with broker.producer(client_id="writer") as producer:
        producer.send(topic, 0, b"x").offset(20)
    (record,) = read_to_end(broker, topic)
    assert before - 1 <= record.timestamp_ms <= time.time() * 1000 + 1


def test_a_record_over_the_topics_limit_is_refused_and_the_others_go_on(broker: Broker) -> None:
    topic = a_topic(broker, max_message_bytes="400000")
    fitting = bytes(400_000 - record_bytes(b"", None, [("h", b"v")]))
    with broker.producer(client_id="writer") as producer:
        first = producer.send(topic, 0, fitting, headers=[("h", b"v")])
        refused = producer.send(topic, 0, fitting + b"x", headers=[("h", b"v")])
        last = producer.send(topic, 0, b"after")
        with pytest.raises(RecordTooLarge, match="400000"):
            refused.offset(20)
        assert (first.offset(20), last.offset(20)) == (0, 1)
        with pytest.raises(RecordTooLarge):
            producer.flush(20)
        producer.send(topic, 0, b"still usable")
        producer.flush(20)
    assert len(read_to_end(broker, topic)) == 3


@pytest.mark.broker
@pytest.mark.parametrize("client", ["python", "confluent"])
def test_batches_are_as_small_as_the_records_that_the_cluster_takes(
    client: str, request: pytest.FixtureRequest
) -> None:
    smallest = 1 << 16
    broker: KafkaBroker = request.getfixturevalue(f"{client}_broker").with_limits(max_record_bytes=smallest)
    topic = a_topic(broker, max_message_bytes=str(smallest))
    sent = [b"%d" % number * 3000 for number in range(100)]
    with broker.producer(client_id="writer") as producer:
        for value in sent:
            producer.send(topic, 0, value)
        producer.flush(60)
    assert [record.value for record in read_to_end(broker, topic)] == sent


def test_sending_to_what_does_not_exist_is_an_error_at_once(broker: Broker) -> None:
    topic = a_topic(broker, num_partitions=2)
    with broker.producer(client_id="writer") as producer:
        with pytest.raises(TopicMismatch, match="no-such-topic"):
            producer.send("no-such-topic", 0, b"x")
        with pytest.raises(TopicMismatch, match=topic):
            producer.send(topic, 2, b"x")
        producer.send(topic, 1, b"x")
        producer.flush(20)


def test_nothing_can_be_asked_of_what_is_closed(broker: Broker) -> None:
    topic = a_topic(broker)
    producer, consumer, admin = (
        broker.producer(client_id="writer"),
        broker.consumer(client_id="reader"),
        broker.admin(),
    )
    for client in (producer, consumer, admin):
        client.close()
        client.close()
    with pytest.raises(ValueError, match="closed"):
        producer.send(topic, 0, b"x")
    with pytest.raises(ValueError, match="closed"):
        producer.flush(1)
    with pytest.raises(ValueError, match="closed"):
        consumer.poll(0)
    with pytest.raises(ValueError, match="closed"):
        admin.list_topics()


def test_closing_a_producer_delivers_what_was_sent(broker: Broker) -> None:
    topic = a_topic(broker)
    with broker.producer(client_id="writer") as producer:
        delivery = producer.send(topic, 0, b"x")
    assert delivery.offset(0) == 0


def test_small_bounds_on_bytes_in_flight_slow_down_but_lose_nothing(broker: Broker) -> None:
    topic = a_topic(broker)
    with broker.producer(client_id="writer", max_in_flight_bytes=10_000) as producer:
        for i in range(100):
            producer.send(topic, 0, b"%04d" % i + bytes(3000))
        producer.send(topic, 0, bytes(50_000))
        producer.flush(20)
    assert len(read_to_end(broker, topic)) == 101


def test_polls_are_empty_when_nothing_comes_and_bounded_when_much_is_there(broker: Broker) -> None:
    topic = a_topic(broker)
    partition = TopicPartition(topic, 0)
    with broker.consumer(client_id="reader") as consumer, broker.producer(client_id="writer") as producer:
        consumer.assign({partition: 0})
        assert consumer.poll(0.05) == []
        for i in range(10):
            producer.send(topic, 0, b"%d" % i)
        producer.flush(20)
        first = wait_until(lambda: consumer.poll(0.2, max_records=4), message="records")
        assert [r.offset for r in first] == [0, 1, 2, 3]
        assert consumer.position(partition) == 4
        assert [r.offset for r in drain(consumer, [partition])] == [4, 5, 6, 7, 8, 9]


def test_assigning_again_keeps_adds_drops_and_moves_partitions(broker: Broker) -> None:
    topic = a_topic(broker, num_partitions=3)
    p0, p1, p2 = (TopicPartition(topic, i) for i in range(3))
    with broker.consumer(client_id="reader") as consumer, broker.producer(client_id="writer") as producer:
        for i in range(12):
            producer.send(topic, i % 3, b"%d" % i)
        producer.flush(20)
        consumer.assign({p0: 0, p1: 0})
        assert len(drain(consumer, [p0, p1])) == 8
        consumer.assign({p0: 4, p2: 1})
        with pytest.raises(ValueError, match="not assigned"):
            consumer.position(p1)
        producer.send(topic, 0, b"new")
        producer.send(topic, 1, b"unseen")
        producer.flush(20)
        assert sorted((r.partition, r.offset) for r in drain(consumer, [p0, p2])) == [
            (0, 4),
            (2, 1),
            (2, 2),
            (2, 3),
        ]
        consumer.assign({p0: 3})
        assert [r.offset for r in drain(consumer, [p0])] == [3, 4]
        consumer.assign({})
        assert consumer.poll(0.05) == []


def test_topics_are_created_once_described_listed_and_deleted(broker: Broker) -> None:
    name = f"rollog-test.{uuid.uuid4().hex[:12]}"
    spec = TopicSpec(name=name, num_partitions=3, config={"cleanup.policy": "compact", "retention.ms": "-1"})
    with broker.admin() as admin:
        assert admin.create_topics([spec]) == [name]
        assert admin.create_topics([spec]) == []
        found = admin.describe_topics([name, "no-such-topic"])
        assert set(found) == {name}
        assert (found[name].num_partitions, found[name].replication_factor) == (3, 1)
        assert found[name].config["cleanup.policy"] == "compact"
        assert found[name].config["retention.ms"] == "-1"
        assert found[name].config["min.insync.replicas"] == "1"
        assert name in admin.list_topics()
        assert not any(topic.startswith("__") for topic in admin.list_topics())
        admin.delete_topics([name, "no-such-topic"])
        wait_until(lambda: name not in admin.list_topics(), message="the topic is gone")
        assert admin.broker_version()
