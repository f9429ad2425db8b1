"""Who works is told from the log: a successor, or a process that only took too long."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest
from support.small_training import FakeRun
from support.waiting import max_wait_seconds, wait_until

from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.errors import (
    BrokerTimeout,
    Expired,
    ProducerFenced,
    RollogError,
    Superseded,
    exit_status,
    exit_status_expired,
    exit_status_fenced,
)
from rollog.rules.epochs import newest_epoch, taken_epoch, why_ended
from schemas import DispatcherEpoch, TrainerEpoch
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.memory_producers import MemoryTransactionalProducer
    from rollog.kernel.broker.topics import RunTopics


@pytest.fixture
def topics(memory_broker: MemoryBroker, run_topics: RunTopics) -> RunTopics:
    FakeRun(memory_broker, run_topics).create_topics()
    return run_topics


class _Interrupted:
    """A producer with something that happens just before its commit."""

    def __init__(self, producer: MemoryTransactionalProducer, interruption: Callable[[], None]) -> None:
        self._producer = producer
        self._interruption = interruption
        self.begin = producer.begin
        self.send = producer.send

    def commit(self, timeout_seconds: float) -> None:
        self._interruption()
        self._producer.commit(timeout_seconds)


def reaches(broker: MemoryBroker, topics: RunTopics, offset: int) -> bool:
    return broker.log(topics.control, 0).next_offset >= offset


def take(
    broker: MemoryBroker, topics: RunTopics, name: str, interruption: Callable[[], None] = lambda: None
) -> TrainerEpoch:
    """A take-over from its first request to its last."""
    with broker.transactional_producer(topics.trainer_transactional_id) as producer:
        interrupted = cast("MemoryTransactionalProducer", _Interrupted(producer, interruption))
        own = TrainerEpoch(epoch=0, trainer_id=name)
        return taken_epoch(broker, topics.control, interrupted, own)


def epochs(broker: MemoryBroker, topics: RunTopics) -> list[tuple[int, str]]:
    with broker.consumer(client_id="test") as consumer:
        read = [decode(record.value or b"") for record in read_to_end(consumer, topics.control, 0)]
    return [(record.epoch, record.trainer_id) for record in read if isinstance(record, TrainerEpoch)]


def test_each_kind_of_role_counts_its_own_epochs(memory_broker: MemoryBroker, topics: RunTopics) -> None:
    with memory_broker.transactional_producer(topics.dispatcher_transactional_id) as producer:
        own = DispatcherEpoch(epoch=0, dispatcher_id="dispatcher")
        assert taken_epoch(memory_broker, topics.control, producer, own).epoch == 1
        assert taken_epoch(memory_broker, topics.control, producer, own).epoch == 2
    assert take(memory_broker, topics, "trainer").epoch == 1
    assert newest_epoch(memory_broker, topics.control, DispatcherEpoch) == DispatcherEpoch(
        epoch=2, dispatcher_id="dispatcher"
    )


def test_who_is_suspended_before_the_commit_of_its_epoch_is_started_again(
    memory_broker: MemoryBroker, topics: RunTopics
) -> None:
    with pytest.raises(Expired, match="no other has taken over") as raised:
        take(
            memory_broker,
            topics,
            "first",
            lambda: memory_broker.expire_transaction(topics.trainer_transactional_id),
        )
    assert exit_status(raised.value) == exit_status_expired
    assert epochs(memory_broker, topics) == []
    assert take(memory_broker, topics, "first, again").epoch == 1


def test_of_two_that_start_at_once_the_one_that_commits_first_stays(
    memory_broker: MemoryBroker, topics: RunTopics
) -> None:
    with pytest.raises(Superseded, match="the trainer second with epoch 1 has taken over") as raised:
        take(memory_broker, topics, "first", lambda: void(take(memory_broker, topics, "second")))
    assert exit_status(raised.value) == exit_status_fenced
    assert epochs(memory_broker, topics) == [(1, "second")]


def test_two_that_fence_each_other_before_either_commits_end_with_exactly_one(
    memory_broker: MemoryBroker, topics: RunTopics
) -> None:
    ended: list[RollogError] = []

    def second_that_is_fenced_too() -> None:
        with pytest.raises(RollogError) as raised:
            take(memory_broker, topics, "second", lambda: fence(memory_broker, topics))
        ended.append(raised.value)

    with pytest.raises(RollogError) as raised:
        take(memory_broker, topics, "first", second_that_is_fenced_too)
    # Nobody has an epoch yet, so both may start again; the first of them to commit stays.
    assert [type(error) for error in (*ended, raised.value)] == [Expired, Expired]
    with pytest.raises(Superseded, match="second, again"):
        take(
            memory_broker, topics, "first, again", lambda: void(take(memory_broker, topics, "second, again"))
        )
    assert epochs(memory_broker, topics) == [(1, "second, again")]


def test_an_epoch_behind_another_roles_open_transaction_is_not_given_twice(
    memory_broker: MemoryBroker, topics: RunTopics
) -> None:
    dispatcher = memory_broker.transactional_producer(topics.dispatcher_transactional_id)
    dispatcher.begin()
    dispatcher.send(topics.control, 0, b"of a dispatcher that is suspended")
    taken: list[TrainerEpoch] = []
    trainers = [
        threading.Thread(target=lambda: taken.append(take(memory_broker, topics, "first"))),
        threading.Thread(target=lambda: taken.append(take(memory_broker, topics, "second"))),
    ]
    for number, trainer in enumerate(trainers, start=1):
        trainer.start()
        wait_until(
            partial(reaches, memory_broker, topics, 1 + 2 * number),
            10,
            "an epoch committed behind the open transaction",
        )
    dispatcher.abort()
    for trainer in trainers:
        trainer.join(max_wait_seconds)
    assert epochs(memory_broker, topics)[-1] == (2, "second")
    assert TrainerEpoch(epoch=2, trainer_id="second") in taken


def fence(broker: MemoryBroker, topics: RunTopics) -> None:
    """What a third one does first, which then dies."""
    broker.transactional_producer(topics.trainer_transactional_id)


def void(_: object) -> None:
    """Nothing."""


def test_a_successor_that_is_about_to_commit_its_epoch_is_waited_for(
    memory_broker: MemoryBroker, topics: RunTopics
) -> None:
    take(memory_broker, topics, "first")
    own = TrainerEpoch(epoch=1, trainer_id="first")
    fenced = ProducerFenced("another process, or too late")
    later = threading.Timer(0.2, take, (memory_broker, topics, "second"))
    later.start()
    try:
        assert isinstance(why_ended(memory_broker, topics.control, own, fenced), Superseded)
    finally:
        later.join()


def test_nobody_is_waited_for_where_the_broker_did_not_refuse(
    memory_broker: MemoryBroker, topics: RunTopics
) -> None:
    take(memory_broker, topics, "first")
    error = BrokerTimeout("no answer")
    assert why_ended(memory_broker, topics.control, TrainerEpoch(epoch=1, trainer_id="first"), error) is error
