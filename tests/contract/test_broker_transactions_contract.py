"""What every broker promises about transactions; both implementations run all of it."""

from __future__ import annotations

import uuid

import pytest
from support.broker_topics import a_topic, drain, read_to_end, values
from support.waiting import wait_until

from rollog.kernel.broker.ports import Broker, TopicPartition
from rollog.kernel.errors import ProducerFenced, RecordTooLarge, TopicMismatch


def an_id() -> str:
    return f"rollog-test.{uuid.uuid4().hex[:12]}"


def test_a_transaction_becomes_visible_in_all_its_topics_when_it_is_committed(broker: Broker) -> None:
    steps, weights = a_topic(broker), a_topic(broker)
    partition = TopicPartition(steps, 0)
    with broker.transactional_producer(an_id()) as producer, broker.consumer(client_id="reader") as consumer:
        producer.begin()
        deliveries = [producer.send(steps, 0, b"step"), producer.send(weights, 0, b"version")]
        assert [delivery.offset(20) for delivery in deliveries] == [0, 0]
        consumer.assign({partition: 0})
        assert consumer.poll(0.3) == []
        producer.commit(20)
        # Every partition knows when it returns; a reader hears of it with one of its next fetches.
        wait_until(lambda: drain(consumer, [partition]), 20, "the committed record")
        wait_until(lambda: consumer.position(partition) == 2, 20, "the marker behind it")
    assert values(read_to_end(broker, steps)) == [b"step"]
    assert values(read_to_end(broker, weights)) == [b"version"]


def test_aborted_records_are_never_seen(broker: Broker) -> None:
    topic = a_topic(broker)
    with broker.transactional_producer(an_id()) as producer:
        for attempt in range(4):
            producer.begin()
            for i in range(3):
                producer.send(topic, 0, b"%d.%d" % (attempt, i))
            if attempt % 2:
                producer.commit(20)
            else:
                producer.abort()
        producer.abort()
    assert values(read_to_end(broker, topic)) == [b"1.0", b"1.1", b"1.2", b"3.0", b"3.1", b"3.2"]


def test_markers_take_offsets_that_ends_and_positions_pass_but_polls_never_return(broker: Broker) -> None:
    topic = a_topic(broker)
    partition = TopicPartition(topic, 0)
    with broker.transactional_producer(an_id()) as producer, broker.consumer(client_id="reader") as consumer:
        consumer.assign({partition: 0})
        for i in range(3):
            producer.begin()
            producer.send(topic, 0, b"%d" % i)
            producer.commit(20)
        wait_until(lambda: consumer.end_offsets([partition])[partition] == 6, message="the last marker")
        assert [r.offset for r in drain(consumer, [partition])] == [0, 2, 4]
        assert consumer.position(partition) == 6
        consumer.assign({partition: 5})
        assert drain(consumer, [partition]) == []
        assert consumer.position(partition) == 6


def test_an_open_transaction_holds_back_everything_after_its_first_record(broker: Broker) -> None:
    topic = a_topic(broker)
    partition = TopicPartition(topic, 0)
    with (
        broker.transactional_producer(an_id()) as slow,
        broker.transactional_producer(an_id()) as quick,
        broker.producer(client_id="plain") as plain,
        broker.consumer(client_id="reader") as consumer,
    ):
        plain.send(topic, 0, b"before").offset(20)
        slow.begin()
        slow.send(topic, 0, b"slow").offset(20)
        quick.begin()
        quick.send(topic, 0, b"quick")
        quick.commit(20)
        plain.send(topic, 0, b"after").offset(20)
        consumer.assign({partition: 0})
        assert consumer.end_offsets([partition]) == {partition: 1}
        assert values(drain(consumer, [partition])) == [b"before"]
        assert consumer.poll(0.3) == []
        slow.commit(20)
        wait_until(lambda: consumer.end_offsets([partition])[partition] == 6, message="both markers")
        assert values(drain(consumer, [partition])) == [b"slow", b"quick", b"after"]


def test_a_newer_producer_of_the_same_id_fences_the_older_and_aborts_its_transaction(broker: Broker) -> None:
    topic = a_topic(broker)
    transactional_id = an_id()
    old = broker.transactional_producer(transactional_id)
    old.begin()
    old.send(topic, 0, b"old").offset(20)
    with broker.transactional_producer(transactional_id) as new:
        with pytest.raises(ProducerFenced):
            old.commit(20)
        with pytest.raises(ProducerFenced):
            old.begin()
        old.abort()
        old.close()
        new.begin()
        new.send(topic, 0, b"new")
        new.commit(20)
        new.begin()
        new.send(topic, 0, b"newer")
        new.commit(20)
    assert values(read_to_end(broker, topic)) == [b"new", b"newer"]


def test_a_fenced_producer_that_goes_on_sending_disturbs_nobody(broker: Broker) -> None:
    topic = a_topic(broker)
    transactional_id = an_id()
    old = broker.transactional_producer(transactional_id)
    old.begin()
    old.send(topic, 0, b"first").offset(20)
    with broker.transactional_producer(transactional_id) as new:
        new.begin()
        new.send(topic, 0, b"new").offset(20)
        with pytest.raises(ProducerFenced):
            old.send(topic, 0, b"late").offset(20)
        with pytest.raises(ProducerFenced):
            old.commit(20)
        old.close()
        new.commit(20)
    assert values(read_to_end(broker, topic)) == [b"new"]


def test_a_fenced_producer_learns_it_at_its_next_transaction(broker: Broker) -> None:
    topic = a_topic(broker)
    transactional_id = an_id()
    with broker.transactional_producer(transactional_id) as old:
        old.begin()
        old.send(topic, 0, b"old")
        old.commit(20)
        with broker.transactional_producer(transactional_id):
            old.begin()
            with pytest.raises(ProducerFenced):
                old.send(topic, 0, b"late").offset(20)
            with pytest.raises(ProducerFenced):
                old.commit(20)
    assert values(read_to_end(broker, topic)) == [b"old"]


def test_a_fenced_producer_cannot_commit_offsets(broker: Broker) -> None:
    topic = a_topic(broker)
    transactional_id = an_id()
    with (
        broker.transactional_producer(transactional_id) as old,
        broker.transactional_producer(transactional_id),
    ):
        old.begin()
        with pytest.raises(ProducerFenced):
            old.send_offsets({TopicPartition(topic, 0): 1}, "group")


def test_producers_of_different_ids_do_not_disturb_each_other(broker: Broker) -> None:
    topic = a_topic(broker, num_partitions=2)
    with broker.transactional_producer(an_id()) as one, broker.transactional_producer(an_id()) as two:
        for i in range(5):
            one.begin()
            two.begin()
            one.send(topic, 0, b"one %d" % i)
            two.send(topic, 0, b"two %d" % i)
            one.send(topic, 1, b"one %d" % i)
            two.commit(20)
            one.commit(20)
    assert len(read_to_end(broker, topic, [0])) == 10
    assert values(read_to_end(broker, topic, [1])) == [b"one %d" % i for i in range(5)]


def test_a_transaction_with_a_record_that_is_too_large_is_aborted_and_the_next_one_works(
    broker: Broker,
) -> None:
    topic = a_topic(broker, max_message_bytes="400000")
    with broker.transactional_producer(an_id()) as producer:
        producer.begin()
        producer.send(topic, 0, b"small")
        producer.send(topic, 0, bytes(500_000))
        with pytest.raises(RecordTooLarge):
            producer.commit(20)
        producer.begin()
        producer.send(topic, 0, b"next")
        producer.commit(20)
    assert values(read_to_end(broker, topic)) == [b"next"]


def test_a_transaction_survives_an_attempt_to_send_to_a_missing_topic(broker: Broker) -> None:
    topic = a_topic(broker)
    with broker.transactional_producer(an_id()) as producer:
        producer.begin()
        with pytest.raises(TopicMismatch, match="no-such-topic"):
            producer.send("no-such-topic", 0, b"x")
        producer.send(topic, 0, b"x")
        producer.commit(20)
    assert values(read_to_end(broker, topic)) == [b"x"]


def test_transactions_are_begun_once_and_before_anything_else(broker: Broker) -> None:
    topic = a_topic(broker)
    producer = broker.transactional_producer(an_id())
    for call in (
        lambda: producer.send(topic, 0, b"x"),
        lambda: producer.send_offsets({TopicPartition(topic, 0): 1}, "group"),
        lambda: producer.commit(20),
    ):
        with pytest.raises(ValueError, match="begin"):
            call()
    producer.begin()
    with pytest.raises(ValueError, match="already open"):
        producer.begin()
    producer.close()
    producer.close()
    with pytest.raises(ValueError, match="closed"):
        producer.begin()


def test_closing_a_producer_aborts_its_open_transaction(broker: Broker) -> None:
    topic = a_topic(broker)
    partition = TopicPartition(topic, 0)
    with broker.transactional_producer(an_id()) as producer:
        producer.begin()
        producer.send(topic, 0, b"x").offset(20)
    with broker.consumer(client_id="reader") as consumer:
        wait_until(lambda: consumer.end_offsets([partition])[partition] == 2, message="an abort marker")
    assert read_to_end(broker, topic) == []


def test_an_empty_transaction_leaves_no_trace(broker: Broker) -> None:
    topic = a_topic(broker)
    with broker.transactional_producer(an_id()) as producer:
        producer.begin()
        producer.commit(20)
        producer.begin()
        producer.abort()
    with broker.consumer(client_id="reader") as consumer:
        assert consumer.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 0}
