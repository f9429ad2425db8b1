"""What every broker promises to readers, an archive of its topics included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.broker_topics import a_topic, drain, read_to_end, values
from support.waiting import wait_until

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_topic
from rollog.kernel.errors import BrokerError, TopicMismatch

if TYPE_CHECKING:
    from support.broker_topics import ReadBack


def test_records_come_back_in_order_with_key_headers_and_offsets(written: ReadBack) -> None:
    topic = a_topic(written.broker)
    headers = [("type", b"Sample"), ("task_id", "ä".encode()), ("empty", b"")]
    with written.broker.producer(client_id="writer") as producer:
        deliveries = [producer.send(topic, 0, b"%d" % i, key=b"k", headers=headers) for i in range(50)]
        producer.flush(20)
    assert [delivery.offset(0) for delivery in deliveries] == list(range(50))
    assert all(delivery.done() for delivery in deliveries)
    records = read_to_end(written.reader(), topic)
    assert [(r.topic, r.partition, r.offset) for r in records] == [(topic, 0, i) for i in range(50)]
    assert values(records) == [b"%d" % i for i in range(50)]
    assert records[0].key == b"k"
    assert list(records[0].headers) == headers
    assert records[0].header("task_id") == "ä".encode()
    assert records[0].header("missing") is None


def test_a_tombstone_has_a_key_and_no_value(written: ReadBack) -> None:
    topic = a_topic(written.broker, cleanup_policy="compact")
    with written.broker.producer(client_id="writer") as producer:
        producer.send(topic, 0, None, key=b"worker-1")
        producer.flush(20)
        with pytest.raises(ValueError, match="key"):
            producer.send(topic, 0, None)
    (record,) = read_to_end(written.reader(), topic)
    assert (record.key, record.value) == (b"worker-1", None)


def test_partitions_are_the_ones_named(written: ReadBack) -> None:
    topic = a_topic(written.broker, num_partitions=3)
    with written.broker.producer(client_id="writer") as producer:
        for i in range(9):
            producer.send(topic, i % 3, b"%d" % i, key=b"same")
        producer.flush(20)
    records = read_to_end(written.reader(), topic, range(3))
    assert sorted((r.partition, r.value) for r in records) == sorted((i % 3, b"%d" % i) for i in range(9))
    assert values(read_to_end(written.reader(), topic, [2])) == [b"2", b"5", b"8"]


def test_a_record_far_over_any_default_limit_passes_where_the_topic_allows_it(written: ReadBack) -> None:
    topic = a_topic(written.broker, max_message_bytes=str(16 << 20))
    value = bytes(range(256)) * ((15 << 20) // 256)
    with written.broker.producer(client_id="writer") as producer:
        producer.send(topic, 0, value).offset(60)
    assert values(read_to_end(written.reader(), topic)) == [value]


def test_reading_what_does_not_exist_is_an_error_at_once(written: ReadBack) -> None:
    missing = TopicPartition("no-such-topic", 0)
    with written.reader().consumer(client_id="reader") as consumer:
        with pytest.raises(TopicMismatch, match="no-such-topic"):
            consumer.assign({missing: 0})
        with pytest.raises(TopicMismatch, match="no-such-topic"):
            consumer.end_offsets([missing])


def test_a_consumer_starts_in_the_middle_of_the_log(written: ReadBack) -> None:
    topic = a_topic(written.broker)
    with written.broker.producer(client_id="writer") as producer:
        for i in range(10):
            producer.send(topic, 0, b"%d" % i)
        producer.flush(20)
    partition = TopicPartition(topic, 0)
    with written.reader().consumer(client_id="reader") as consumer:
        consumer.assign({partition: 7})
        assert consumer.position(partition) == 7
        assert [r.offset for r in drain(consumer, [partition])] == [7, 8, 9]
        assert consumer.position(partition) == 10


def test_an_offset_that_never_existed_is_an_error(written: ReadBack) -> None:
    partition = TopicPartition(a_topic(written.broker), 0)
    with written.reader().consumer(client_id="reader") as consumer:
        consumer.assign({partition: 5})
        for _ in range(2):  # who goes on polling is told again
            with pytest.raises(BrokerError, match="deleted, or never existed"):
                wait_until(lambda: consumer.poll(0.2), message="an error")


def test_beginning_and_end_offsets_need_no_assignment(written: ReadBack) -> None:
    topic = a_topic(written.broker, num_partitions=2)
    p0, p1 = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with written.broker.producer(client_id="writer") as producer:
        producer.send(topic, 1, b"x")
        producer.flush(20)
    with written.reader().consumer(client_id="reader") as consumer:
        assert consumer.beginning_offsets([p0, p1]) == {p0: 0, p1: 0}
        assert consumer.end_offsets([p0, p1]) == {p0: 0, p1: 1}
        assert consumer.end_offsets([]) == {}


def test_markers_and_aborted_records_leave_gaps_that_positions_pass(written: ReadBack) -> None:
    topic = a_topic(written.broker)
    place = TopicPartition(topic, 0)
    with written.broker.transactional_producer(f"id-{topic}") as producer:
        for value, is_kept in ((b"a", True), (b"b", False), (b"c", True)):
            producer.begin()
            producer.send(topic, 0, value).offset(20)
            if is_kept:
                producer.commit(20)
            else:
                producer.abort()
    written.wait_for_end(place, 6)
    with written.reader().consumer(client_id="reader") as consumer:
        assert consumer.end_offsets([place]) == {place: 6}
        consumer.assign({place: 0})
        assert [(r.offset, r.value) for r in drain(consumer, [place])] == [(0, b"a"), (4, b"c")]
        assert consumer.position(place) == 6
        for gap in (1, 2, 3):
            consumer.assign({place: gap})
            assert [r.offset for r in drain(consumer, [place])] == [4]
        consumer.assign({place: 5})
        assert drain(consumer, [place]) == []
        assert consumer.position(place) == 6


def test_deleted_records_are_gone_and_those_behind_them_keep_their_offsets(written: ReadBack) -> None:
    topic = a_topic(written.broker, num_partitions=2)
    p0, p1 = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with written.broker.producer(client_id="writer") as producer, written.broker.admin() as admin:
        for i in range(10):
            producer.send(topic, i % 2, b"%d" % i)
        producer.flush(20)
        admin.delete_records({p0: 3})
        admin.delete_records({p0: 1})
        with pytest.raises(BrokerError, match=topic):
            admin.delete_records({p0: 6})
        with pytest.raises(TopicMismatch):
            admin.delete_records({TopicPartition(topic, 2): 0})
    with written.reader().consumer(client_id="reader") as consumer:
        assert consumer.beginning_offsets([p0, p1]) == {p0: 3, p1: 0}
        assert consumer.end_offsets([p0, p1]) == {p0: 5, p1: 5}
        consumer.assign({p0: 3, p1: 0})
        found = drain(consumer, [p0, p1])
        assert sorted((r.partition, r.offset) for r in found) == [(0, 3), (0, 4), *((1, i) for i in range(5))]
        consumer.assign({p0: 2})
        for _ in range(2):  # who goes on polling is told again
            with pytest.raises(BrokerError, match="deleted, or never existed"):
                wait_until(lambda: consumer.poll(0.2), message="an error")
        consumer.assign({p0: 3})
        assert [r.offset for r in drain(consumer, [p0])] == [3, 4]


def test_polls_are_bounded_by_the_number_asked_for(written: ReadBack) -> None:
    topic = a_topic(written.broker, num_partitions=2)
    p0, p1 = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with written.broker.producer(client_id="writer") as producer:
        for i in range(20):
            producer.send(topic, i % 2, b"%d" % i)
        producer.flush(20)
    with written.reader().consumer(client_id="reader") as consumer:
        consumer.assign({p0: 0, p1: 2})
        first = wait_until(lambda: consumer.poll(0.2, max_records=4), message="records")
        assert len(first) <= 4
        rest = drain(consumer, [p0, p1])
        by_partition = [[r.offset for r in [*first, *rest] if r.partition == number] for number in (0, 1)]
        assert by_partition == [list(range(10)), list(range(2, 10))]
        consumer.assign({p1: 9})
        assert [r.offset for r in drain(consumer, [p1])] == [9]
        consumer.assign({})
        assert consumer.poll(0.05) == []


def test_readers_describe_and_list_topics_and_cannot_be_used_once_closed(written: ReadBack) -> None:
    topic = a_topic(written.broker, num_partitions=3, cleanup_policy="compact")
    reader = written.reader()
    admin, consumer = reader.admin(), reader.consumer(client_id="reader")
    found = admin.describe_topics([topic, "no-such-topic"])
    assert set(found) == {topic}
    assert found[topic].num_partitions == 3
    assert found[topic].config["cleanup.policy"] == "compact"
    assert topic in admin.list_topics()
    assert admin.broker_version()
    for client in (admin, consumer):
        client.close()
        client.close()
    with pytest.raises(ValueError, match="closed"):
        consumer.poll(0)
    with pytest.raises(ValueError, match="closed"):
        admin.list_topics()


def test_a_topic_is_read_whole_and_one_that_is_not_there_is_named(written: ReadBack) -> None:
    topic = a_topic(written.broker, num_partitions=2)
    with written.broker.producer(client_id="writer") as producer:
        for number in range(4):
            producer.send(topic, number % 2, b"%d" % number)
        producer.flush(20)
    reader = written.reader()
    assert values(list(read_topic(reader, topic, client_id="test"))) == [b"0", b"2", b"1", b"3"]
    with pytest.raises(TopicMismatch, match="absent-topic does not exist"):
        list(read_topic(reader, "absent-topic", client_id="test"))
