"""What the broker in memory offers beyond the port: pauses, and several roles as threads."""

from __future__ import annotations

import threading

import pytest
from support.broker_topics import a_topic, read_to_end, values
from support.waiting import wait_until

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import BrokerTimeout, ProducerFenced


def test_sends_to_a_paused_broker_stay_in_flight_until_it_resumes() -> None:
    broker = MemoryBroker()
    topic = a_topic(broker)
    with broker.producer(client_id="writer") as producer:
        broker.pause()
        deliveries = [producer.send(topic, 0, b"%d" % i) for i in range(3)]
        assert not any(delivery.done() for delivery in deliveries)
        with pytest.raises(BrokerTimeout):
            producer.flush(0.01)
        broker.resume()
        assert [delivery.offset(0) for delivery in deliveries] == [0, 1, 2]
        producer.flush(0)
    assert values(read_to_end(broker, topic)) == [b"0", b"1", b"2"]


def test_bytes_in_flight_are_bounded_while_the_broker_is_paused() -> None:
    broker = MemoryBroker(block_seconds=0.01)
    topic = a_topic(broker)
    with broker.producer(client_id="writer", max_in_flight_bytes=5000) as producer:
        broker.pause()
        for _ in range(4):
            producer.send(topic, 0, bytes(1000))
        with pytest.raises(BrokerTimeout, match="5000 bytes"):
            producer.send(topic, 0, bytes(1000))
        broker.resume()
        producer.send(topic, 0, bytes(1000))
    assert len(read_to_end(broker, topic)) == 5


def test_a_commit_during_a_pause_has_an_unknown_outcome() -> None:
    broker = MemoryBroker()
    topic = a_topic(broker)
    with broker.transactional_producer("id") as producer:
        producer.begin()
        producer.send(topic, 0, b"x")
        broker.pause()
        with pytest.raises(BrokerTimeout, match="unknown"):
            producer.commit(0.01)
        with pytest.raises(BrokerTimeout):
            producer.begin()
    broker.resume()
    assert values(read_to_end(broker, topic)) == [b"x"]


def test_a_consumer_of_a_paused_broker_reads_nothing() -> None:
    broker = MemoryBroker()
    topic = a_topic(broker)
    with broker.producer(client_id="writer") as producer, broker.consumer(client_id="reader") as consumer:
        producer.send(topic, 0, b"x")
        consumer.assign({TopicPartition(topic, 0): 0})
        broker.pause()
        assert consumer.poll(0.01) == []
        broker.resume()
        assert values(consumer.poll(1)) == [b"x"]


def test_questions_to_a_paused_broker_go_unanswered() -> None:
    broker = MemoryBroker(block_seconds=0.01)
    topic = a_topic(broker)
    places = [TopicPartition(topic, 0)]
    with broker.consumer(client_id="reader") as consumer, broker.admin() as admin:
        broker.pause()
        for ask in (
            lambda: consumer.end_offsets(places),
            lambda: consumer.beginning_offsets(places),
            lambda: broker.transactional_producer("id"),
            admin.list_topics,
            admin.broker_version,
        ):
            with pytest.raises(BrokerTimeout, match="no answer"):
                ask()
        broker.resume()
        assert consumer.end_offsets(places) == {places[0]: 0}


def test_a_question_to_a_paused_broker_is_answered_once_it_resumes() -> None:
    broker = MemoryBroker()
    topic = a_topic(broker)
    place = TopicPartition(topic, 0)
    answers: list[int] = []

    def ask() -> None:
        with broker.consumer(client_id="reader") as consumer:
            answers.append(consumer.end_offsets([place])[place])

    with broker.producer(client_id="writer") as producer:
        broker.pause()
        producer.send(topic, 0, b"asked for before the answer")
        asking = threading.Thread(target=ask)
        asking.start()
        assert answers == []
        broker.resume()
        asking.join()
    assert answers == [1]


def test_a_transaction_open_for_too_long_is_aborted_and_its_producer_fenced() -> None:
    broker = MemoryBroker()
    topic = a_topic(broker)
    producer = broker.transactional_producer("id")
    producer.begin()
    producer.send(topic, 0, b"x")
    broker.expire_transaction("id")
    with pytest.raises(ProducerFenced):
        producer.commit(1)
    assert read_to_end(broker, topic) == []


def test_a_poll_wakes_up_for_a_record_sent_by_another_thread() -> None:
    broker = MemoryBroker()
    topic = a_topic(broker)
    received: list[bytes | None] = []

    def read() -> None:
        with broker.consumer(client_id="reader") as consumer:
            consumer.assign({TopicPartition(topic, 0): 0})
            while len(received) < 100:
                received.extend(values(consumer.poll(5)))

    reader = threading.Thread(target=read)
    reader.start()
    with broker.producer(client_id="writer") as producer:
        for i in range(100):
            producer.send(topic, 0, b"%d" % i)
    wait_until(lambda: len(received) == 100, message="all records")
    reader.join()
    assert received == [b"%d" % i for i in range(100)]


def test_busy_partitions_do_not_hide_quiet_ones() -> None:
    broker = MemoryBroker()
    topic = a_topic(broker, num_partitions=2)
    with broker.producer(client_id="writer") as producer, broker.consumer(client_id="reader") as consumer:
        for _ in range(100):
            producer.send(topic, 0, b"busy")
        producer.send(topic, 1, b"quiet")
        consumer.assign({TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0})
        first, second = consumer.poll(1, max_records=10), consumer.poll(1, max_records=10)
    assert b"quiet" in values(first + second)
