"""A broker that refuses a client which was connected: whatever the client waits for, it hears of it soon."""

from __future__ import annotations

import gc
import ssl
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from support.broker_topics import a_topic
from support.secured_kafka import Listener, SecuredKafka, SecuredListeners

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import BrokerError, BrokerRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # kafka-python leaves the socket of a failed handshake to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

reauthentication_seconds = 3.0
named_within_seconds = 15.0
passes_within_seconds = 120.0
"""What each call below is given; it must not take that long."""


@pytest.fixture(scope="module")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory, cache_directory: Path) -> Iterator[SecuredKafka]:
    listeners = SecuredListeners(
        users={"admin": "admin-password", "ada": "ada-password"},
        super_users=("admin", "ada"),
        reauthentication_ms=round(reauthentication_seconds * 1000),
    )
    with SecuredKafka(tmp_path_factory.mktemp("secured"), cache_directory, secured=listeners) as kafka:
        yield kafka
    for left in gc.get_objects():
        if isinstance(left, ssl.SSLSocket):
            left.close()


def producing(broker: Broker, topic: str, opened: ExitStack) -> Callable[[], object]:
    producer = opened.enter_context(broker.producer(client_id="producer"))

    def work() -> None:
        producer.send(topic, 0, b"x")
        producer.flush(passes_within_seconds)

    return work


def filling(broker: Broker, topic: str, opened: ExitStack) -> Callable[[], object]:
    """A producer that only ever waits for room."""
    producer = opened.enter_context(broker.producer(client_id="filling", max_in_flight_bytes=1000))
    return lambda: producer.send(topic, 0, bytes(600))


def committing(broker: Broker, topic: str, opened: ExitStack) -> Callable[[], object]:
    producer = opened.enter_context(broker.transactional_producer(f"committing-{topic}"))

    def work() -> None:
        producer.begin()
        producer.send(topic, 0, b"x")
        producer.send_offsets({TopicPartition(topic, 0): 0}, "committing")
        producer.commit(passes_within_seconds)

    return work


def administering(broker: Broker, topic: str, opened: ExitStack) -> Callable[[], object]:
    admin = opened.enter_context(broker.admin())
    return lambda: admin.describe_topics([topic])


def asking_for_offsets(broker: Broker, topic: str, opened: ExitStack) -> Callable[[], object]:
    consumer = opened.enter_context(broker.consumer(client_id="offsets"))
    return lambda: consumer.end_offsets([TopicPartition(topic, 0)])


def reading(broker: Broker, topic: str, opened: ExitStack) -> Callable[[], object]:
    consumer = opened.enter_context(broker.consumer(client_id="reading"))
    consumer.assign({TopicPartition(topic, 0): 0})
    return lambda: consumer.poll(0.2)


kinds = (producing, filling, committing, administering, asking_for_offsets, reading)


def refused_within(work: Callable[[], object], seconds: float) -> tuple[str, float]:
    """What ends the work, which is done again and again, and after how long."""
    began = time.monotonic()
    while True:
        try:
            work()
        except BrokerRefused as refused:
            return str(refused), time.monotonic() - began
        assert time.monotonic() - began < seconds, "nobody was refused"
        time.sleep(0.1)


@pytest.mark.parametrize("kind", kinds)
def test_a_password_that_was_changed_ends_whatever_works_with_it(
    either_client: SecuredKafka, kind: Callable[..., Callable[[], object]], tmp_path: Path
) -> None:
    topic = a_topic(either_client.broker())
    password = tmp_path / "password"
    password.write_text("ada-password\n")
    with ExitStack() as opened:
        work = kind(either_client.broker("ada", password_file=str(password)), topic, opened)
        work()
        either_client.change_password("ada", "another")
        try:
            longest = reauthentication_seconds + named_within_seconds
            told, seconds = refused_within(work, longest)
        finally:
            either_client.change_password("ada", "ada-password")
    assert "does not take the password of user 'ada'" in told
    assert str(password) in told
    assert seconds < longest


def test_a_certificate_that_expires_ends_whatever_connects_again(either_client: SecuredKafka) -> None:
    restart_with_certificate(either_client, days=(-1, 30))
    broker = either_client.broker("admin", Listener.EXPIRED)
    topic = a_topic(broker)
    with ExitStack() as opened:
        works = [kind(broker, topic, opened) for kind in kinds]
        for work in works:
            work()
        restart_with_certificate(either_client, days=(-30, -1))
        # Six clients in one process that all connect again: far from any time-out, but not as fast as one alone.
        for work in works:
            told, _ = refused_within(work, passes_within_seconds / 2)
            assert "the broker's certificate has expired: renew it on the broker" in told
        began = time.monotonic()
    # Whoever is refused does not wait for what is under way either, when it ends.
    assert time.monotonic() - began < passes_within_seconds


def test_a_broker_that_is_started_again_refuses_nobody(either_client: SecuredKafka) -> None:
    broker = either_client.broker("ada")
    topic = a_topic(broker)
    has_started, refusals = threading.Event(), list[BrokerRefused]()

    def work_on(work: Callable[[], object]) -> None:
        """As long as the broker is away, other errors are those of a broker that is away."""
        while not has_started.is_set():
            try:
                work()
            except BrokerRefused as refused:
                refusals.append(refused)
            except BrokerError:
                time.sleep(0.1)

    with ExitStack() as opened:
        works = {kind: kind(broker, topic, opened) for kind in kinds}
        threads = [threading.Thread(target=work_on, args=[work]) for work in works.values()]
        for thread in threads:
            thread.start()
        either_client.restart()
        has_started.set()
        for thread in threads:
            thread.join()
        works[reading]()
        works[asking_for_offsets]()
    assert refusals == []


def restart_with_certificate(kafka: SecuredKafka, *, days: tuple[int, int]) -> None:
    """Start again with another certificate of the listener that shows an expired one."""
    kafka.authority.issue("broker", days=days, file_name="expired")
    kafka.restart()
