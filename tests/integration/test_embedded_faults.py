"""What both clients do when the broker is killed, stops answering or is not there."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest
from support.broker_topics import a_topic, drain, read_to_end, values
from support.fenced_broker import FencedBroker
from support.waiting import wait_until

from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import BrokerError, BrokerTimeout, BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.session_kafka import SessionKafka

    from rollog.kernel.broker.ports import TransactionalProducer

    NewBroker = Callable[..., KafkaBroker]

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(params=["kafka-python", "confluent"])
def new_broker(request: pytest.FixtureRequest) -> NewBroker:
    """The broker port over each client library."""
    if request.param == "confluent":
        pytest.importorskip("confluent_kafka")
    return partial(KafkaBroker, client=request.param)


@pytest.fixture(scope="module")
def mortal_kafka(
    embedded_kafka: SessionKafka, tmp_path_factory: pytest.TempPathFactory, cache_directory: Path
) -> Iterator[EmbeddedKafka]:
    """A broker that tests may kill, as long as they bring it back."""
    assert embedded_kafka.pid
    with EmbeddedKafka(tmp_path_factory.mktemp("mortal"), cache_directory) as kafka:
        yield kafka


@dataclass
class Writer:
    """A thread that writes numbers until it is told to stop, and remembers what it got through."""

    stop: threading.Event = field(default_factory=threading.Event)
    written: list[bytes] = field(default_factory=list)
    errors: list[BrokerError] = field(default_factory=list)

    def write_records(self, broker: KafkaBroker, topic: str) -> None:
        try:
            with broker.producer(client_id="writer") as producer:
                for number in itertools.count():
                    producer.send(topic, 0, b"%d" % number)
                    self.written.append(b"%d" % number)
                    if self.stop.wait(0.0005):
                        break
                producer.flush(60)
        except BrokerError as error:
            self.errors.append(error)

    def write_transactions(self, broker: KafkaBroker, topic: str) -> None:
        try:
            with broker.transactional_producer(topic, transaction_timeout_seconds=60) as producer:
                for number in itertools.count():
                    records = [b"%d.%d" % (number, i) for i in range(5)]
                    producer.begin()
                    for record in records:
                        producer.send(topic, 0, record)
                    producer.send_offsets({TopicPartition(topic, 0): number}, f"{topic}.group")
                    producer.commit(60)
                    self.written += records
                    if self.stop.is_set():
                        break
        except BrokerError as error:
            self.errors.append(error)


def kill(kafka: EmbeddedKafka) -> None:
    kafka.kill()
    kafka.restart()


def suspend(kafka: EmbeddedKafka) -> None:
    """For longer than its session: it is fenced, and answers for a moment that the cluster has no brokers."""
    os.kill(kafka.pid, signal.SIGSTOP)
    time.sleep(7)
    os.kill(kafka.pid, signal.SIGCONT)


@pytest.mark.parametrize("hurt", [kill, suspend])
def test_a_broker_that_is_killed_or_suspended_loses_and_doubles_nothing(
    new_broker: NewBroker, mortal_kafka: EmbeddedKafka, hurt: Callable[[EmbeddedKafka], None]
) -> None:
    broker = new_broker(mortal_kafka.address)
    plain_topic, transaction_topic = a_topic(broker), a_topic(broker)
    plain, transactional = Writer(), Writer()
    threads = [
        threading.Thread(target=plain.write_records, args=(broker, plain_topic)),
        threading.Thread(target=transactional.write_transactions, args=(broker, transaction_topic)),
    ]
    partition = TopicPartition(plain_topic, 0)
    with broker.consumer(client_id="reader") as consumer:
        consumer.assign({partition: 0})
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(transactional.written) > 50, message="some transactions")
            read_before = wait_until(lambda: consumer.poll(0.2), message="some records")
            hurt(mortal_kafka)
            seen = len(transactional.written)
            wait_until(lambda: len(transactional.written) > seen + 50, 60, "transactions afterwards")
            newest = plain.written[-1]

            def has_come() -> bool:
                read_before.extend(consumer.poll(0.2))
                return newest in values(read_before[-500:])

            wait_until(has_come, 60, "what was written afterwards")
        finally:
            for writer in (plain, transactional):
                writer.stop.set()
            for thread in threads:
                thread.join()
        assert plain.errors == transactional.errors == []
        assert values(read_before + drain(consumer, [partition])) == plain.written
    assert values(read_to_end(broker, plain_topic)) == plain.written
    assert values(read_to_end(broker, transaction_topic)) == transactional.written


@pytest.fixture
def frozen_kafka(mortal_kafka: EmbeddedKafka) -> Iterator[EmbeddedKafka]:
    """The test freezes it with SIGSTOP; it goes on afterwards."""
    yield mortal_kafka
    os.kill(mortal_kafka.pid, signal.SIGCONT)
    broker = KafkaBroker(mortal_kafka.address, connect_timeout_seconds=30)
    broker.admin().close()


def test_a_broker_that_does_not_answer_leaves_a_bounded_amount_in_flight(
    new_broker: NewBroker, frozen_kafka: EmbeddedKafka
) -> None:
    broker = new_broker(frozen_kafka.address, delivery_timeout_seconds=2)
    topic = a_topic(broker)
    producer = broker.producer(client_id="writer", max_in_flight_bytes=100_000)
    producer.send(topic, 0, b"first").offset(20)
    os.kill(frozen_kafka.pid, signal.SIGSTOP)
    for _ in range(9):
        producer.send(topic, 0, bytes(10_000))
    with pytest.raises(BrokerTimeout):
        producer.send(topic, 0, bytes(10_000))
    with pytest.raises(BrokerTimeout):
        producer.flush(5)
    producer.close()


def test_a_producer_whose_record_timed_out_is_of_no_more_use(
    new_broker: NewBroker, frozen_kafka: EmbeddedKafka
) -> None:
    broker = new_broker(frozen_kafka.address, delivery_timeout_seconds=2)
    topic = a_topic(broker)
    with broker.producer(client_id="writer") as producer:
        producer.send(topic, 0, b"first").offset(20)
        os.kill(frozen_kafka.pid, signal.SIGSTOP)
        delivery = producer.send(topic, 0, b"lost?")
        with pytest.raises(BrokerTimeout):
            delivery.offset(20)
        os.kill(frozen_kafka.pid, signal.SIGCONT)
        with pytest.raises(BrokerTimeout):
            producer.send(topic, 0, b"more")
        with pytest.raises(BrokerTimeout):
            producer.flush(5)


def test_a_commit_without_an_answer_is_of_unknown_outcome(
    new_broker: NewBroker, frozen_kafka: EmbeddedKafka
) -> None:
    broker = new_broker(frozen_kafka.address)
    topic = a_topic(broker)
    with broker.transactional_producer(topic) as producer:
        producer.begin()
        producer.send(topic, 0, b"x").offset(20)
        os.kill(frozen_kafka.pid, signal.SIGSTOP)
        with pytest.raises(BrokerTimeout, match="unknown"):
            producer.commit(1)
        with pytest.raises(BrokerTimeout):
            producer.begin()
        os.kill(frozen_kafka.pid, signal.SIGCONT)
    with broker.transactional_producer(topic):
        settled = values(read_to_end(broker, topic))
    assert settled in ([], [b"x"])


def test_polls_of_a_broker_that_does_not_answer_are_empty(
    new_broker: NewBroker, frozen_kafka: EmbeddedKafka
) -> None:
    broker = new_broker(frozen_kafka.address)
    topic = a_topic(broker)
    partition = TopicPartition(topic, 0)
    with broker.consumer(client_id="reader", group_id=topic) as consumer:
        consumer.assign({partition: 0})
        assert consumer.poll(0.5) == []
        os.kill(frozen_kafka.pid, signal.SIGSTOP)
        consumer.commit({partition: 0})
        assert consumer.poll(0.5) == []
        os.kill(frozen_kafka.pid, signal.SIGCONT)
        with broker.producer(client_id="writer") as producer:
            producer.send(topic, 0, b"x").offset(30)
        assert values(wait_until(lambda: consumer.poll(0.5), message="a record")) == [b"x"]


def test_a_consumer_ends_within_seconds_although_its_newest_commit_has_no_answer(
    new_broker: NewBroker, frozen_kafka: EmbeddedKafka
) -> None:
    broker = new_broker(frozen_kafka.address)
    topic = a_topic(broker)
    partition = TopicPartition(topic, 0)
    consumer = broker.consumer(client_id="reader", group_id=topic)
    consumer.assign({partition: 0})
    consumer.commit({partition: 0})
    assert consumer.poll(0.5) == []
    os.kill(frozen_kafka.pid, signal.SIGSTOP)
    consumer.commit({partition: 0})
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 30


def test_offsets_of_a_broker_that_does_not_answer_cannot_be_had(
    new_broker: NewBroker, frozen_kafka: EmbeddedKafka
) -> None:
    broker = new_broker(frozen_kafka.address)
    partition = TopicPartition(a_topic(broker), 0)
    with broker.consumer(client_id="reader") as consumer:
        assert consumer.end_offsets([partition]) == {partition: 0}
        os.kill(frozen_kafka.pid, signal.SIGSTOP)
        with pytest.raises(BrokerTimeout):
            consumer.end_offsets([partition])
        os.kill(frozen_kafka.pid, signal.SIGCONT)
        assert consumer.end_offsets([partition]) == {partition: 0}


def test_no_client_can_be_had_where_nothing_listens(new_broker: NewBroker) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        broker = new_broker(address, connect_timeout_seconds=0.5)
        for ask in (
            broker.admin,
            lambda: broker.producer(client_id="x"),
            lambda: broker.consumer(client_id="x"),
            lambda: broker.transactional_producer("x"),
        ):
            with pytest.raises(BrokerUnreachable, match=f"{address}.*refused"):
                ask()


def test_a_broker_that_finds_no_room_says_where_and_leaves_its_directory_free(
    embedded_kafka: SessionKafka, tmp_path: Path, cache_directory: Path
) -> None:
    assert embedded_kafka.pid  # its jars are there
    kafka = EmbeddedKafka(tmp_path, cache_directory)
    for name in ("server.properties", "broker.new"):
        (tmp_path / name).symlink_to("/dev/full")

    with pytest.raises(BrokerError, match=f"cannot write to {tmp_path}: .*No space left on device"):
        kafka.start()

    for name in ("server.properties", "broker.new"):
        (tmp_path / name).unlink()
    with kafka:
        assert KafkaBroker(kafka.address).admin()


def test_what_a_dead_producer_left_open_is_undone_although_the_broker_died_too(
    new_broker: NewBroker,
    mortal_kafka: EmbeddedKafka,
) -> None:
    """At its start a broker aborts transactions that are too old, and forgets to tell the partitions (KAFKA-20734)."""
    broker = new_broker(mortal_kafka.address)
    topic = a_topic(broker, num_partitions=2)
    dead = broker.transactional_producer(topic, topics=[topic], transaction_timeout_seconds=1)
    dead.begin()
    for partition in range(2):
        dead.send(topic, partition, b"never committed").offset(20)
    mortal_kafka.kill()
    time.sleep(1.0)  # older than it may become
    mortal_kafka.restart()

    with broker.transactional_producer(topic, topics=[topic]) as producer:
        for partition in range(2):
            assert read_to_end(broker, topic, [partition]) == []
        producer.begin()
        producer.send(topic, 0, b"new")
        producer.commit(20)

        assert values(read_to_end(broker, topic)) == [b"new"]
    dead.close()


def test_what_was_committed_can_be_read_although_the_broker_died_meanwhile(
    new_broker: NewBroker,
    mortal_kafka: EmbeddedKafka,
) -> None:
    """A broker that dies between the decision and its marks forgets to make them at its start (KAFKA-20734)."""
    broker = new_broker(mortal_kafka.address)
    topic = a_topic(broker)
    with broker.transactional_producer(topic, topics=[topic], transaction_timeout_seconds=60) as producer:
        for number in range(3):
            producer.begin()
            producer.send(topic, 0, b"%d" % number).offset(20)
            # The library returns as soon as the coordinator has decided.
            producer._library._raw.commit_transaction()  # type: ignore[attr-defined]
            mortal_kafka.kill()
            mortal_kafka.restart()
            producer._library.await_decided(time.monotonic() + 30, is_committed=True)  # type: ignore[attr-defined]
            producer._finish()

            assert values(read_to_end(broker, topic)) == [b"%d" % each for each in range(number + 1)]


@pytest.fixture
def fenced(embedded_kafka: SessionKafka) -> Iterator[FencedBroker]:
    """The broker of all tests, behind one that can say that there is none."""
    with FencedBroker(embedded_kafka.address) as broker:
        yield broker


def test_a_broker_that_is_fenced_for_a_moment_is_found_again(
    new_broker: NewBroker, fenced: FencedBroker
) -> None:
    broker = new_broker(fenced.address)
    topic = a_topic(broker)
    at = TopicPartition(topic, 0)
    with broker.producer(client_id="writer") as producer, broker.consumer(client_id="reader") as consumer:
        consumer.assign({at: 0})
        read: list[bytes | None] = []

        def has_come(record: bytes) -> bool:
            read.extend(values(consumer.poll(0.2)))
            return record in read

        producer.send(topic, 0, b"before").offset(60)
        wait_until(lambda: has_come(b"before"), 60, "the record before")
        fenced.fence()
        during = producer.send(topic, 0, b"during")

        def have_asked() -> bool:
            return not has_come(b"nothing") and fenced.num_refusals > 1

        wait_until(have_asked, 60, "clients that ask")
        time.sleep(3)  # what they do without brokers, they have done by then
        fenced.unfence()
        after = producer.send(topic, 0, b"after")
        during.offset(60)
        after.offset(60)
        wait_until(lambda: has_come(b"after"), 60, "the record afterwards")
        assert read == [b"before", b"during", b"after"]


def test_a_transaction_in_which_the_broker_is_fenced_ends_within_seconds(
    new_broker: NewBroker, fenced: FencedBroker
) -> None:
    """Mostly confluent-kafka does not find it again, which is said long before its time-out of two minutes."""
    broker = new_broker(fenced.address)
    topic = a_topic(broker)

    def end(producer: TransactionalProducer) -> None:
        producer.send_offsets({TopicPartition(topic, 0): 1}, f"{topic}.group")
        producer.commit(60)

    with broker.transactional_producer(topic, transaction_timeout_seconds=60) as producer:
        producer.begin()
        producer.send(topic, 0, b"before")
        end(producer)
        producer.begin()
        producer.send(topic, 0, b"meanwhile")
        fenced.fence()
        time.sleep(3)  # what it does without brokers, it has done by then
        fenced.unfence()
        meanwhile = [b"meanwhile"]
        try:
            end(producer)
        except BrokerTimeout as error:
            assert "the library has lost it" in str(error)  # noqa: PT017 - it may go on as well
            meanwhile = []
    with broker.transactional_producer(topic, transaction_timeout_seconds=60) as producer:
        producer.begin()
        producer.send(topic, 0, b"after")
        end(producer)
    assert values(read_to_end(broker, topic)) == [b"before", *meanwhile, b"after"]
