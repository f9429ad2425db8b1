"""The step transaction: all of it or nothing."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from support.builders import LedgerBuilder, a_genesis, weights_sha256
from support.small_training import FakeRun

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.errors import (
    BrokerTimeout,
    Expired,
    RecordTooLarge,
    Superseded,
    exit_status,
    exit_status_expired,
)
from rollog.rules.ledger_state import record_hash
from schemas import DeadLetter, Disposition, LedgerKind, LedgerRecord, Verdict, WeightVersion
from schemas.codec import decode, encode
from trainer.ledger.writer import LedgerWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rollog.kernel.broker.memory_producers import MemoryTransactionalProducer
    from rollog.kernel.broker.ports import TransactionalProducer
    from rollog.kernel.broker.topics import RunTopics

notice = WeightVersion(version=0, sha256=weights_sha256(0), name="v000000-0.safetensors", num_bytes=1)
letter = DeadLetter(
    topic="samples",
    partition=1,
    offset=3,
    reason="torn",
    error_class="SchemaError",
    owner="trainer",
    value=b"x",
)


def a_writer(broker: MemoryBroker, topics: RunTopics, max_record_bytes: int = 1 << 20) -> LedgerWriter:
    return LedgerWriter(broker, topics, transaction_timeout_seconds=10.0, max_record_bytes=max_record_bytes)


@pytest.fixture
def topics(memory_broker: MemoryBroker, run_topics: RunTopics) -> RunTopics:
    FakeRun(memory_broker, run_topics, num_partitions=4).create_topics()
    return run_topics


@pytest.fixture
def writer(memory_broker: MemoryBroker, topics: RunTopics) -> Iterator[LedgerWriter]:
    with a_writer(memory_broker, topics) as writer:
        yield writer


def records_of(broker: MemoryBroker, topic: str) -> list[object]:
    with broker.consumer(client_id="test") as consumer:
        return [decode(record.value or b"") for record in read_to_end(consumer, topic, 0)]


def many_verdicts(number: int) -> LedgerRecord:
    verdicts = [
        Verdict(
            partition=0,
            offset=offset,
            sample_id="g0.r0.a0",
            digest=bytes(16),
            group_id=0,
            replica=0,
            disposition=Disposition.FAILED,
        )
        for offset in range(number)
    ]
    builder = LedgerBuilder()
    return builder.verdicts(verdicts)


def test_record_notice_letters_and_offsets_are_committed_together(
    memory_broker: MemoryBroker, topics: RunTopics, writer: LedgerWriter
) -> None:
    record = replace(a_genesis(), low_water_marks=(1, 2, 3, 4))
    digest = writer.commit(record, weights=[notice], dead_letters=[letter]).digest
    assert digest == record_hash(encode(record))
    assert records_of(memory_broker, topics.steps) == [record]
    assert records_of(memory_broker, topics.weights) == [notice]
    assert records_of(memory_broker, topics.dead_letters) == [letter]
    assert memory_broker.committed_offsets[topics.trainer_group] == {
        TopicPartition(topics.samples, partition): partition + 1 for partition in range(4)
    }


def test_all_forms_of_a_version_are_noticed_in_one_transaction(
    memory_broker: MemoryBroker, topics: RunTopics, writer: LedgerWriter
) -> None:
    other = replace(notice, name="other")
    writer.commit(a_genesis(), weights=[notice, other])
    assert records_of(memory_broker, topics.weights) == [notice, other]


def test_a_later_trainer_fences_this_one_and_nothing_of_it_is_seen(
    memory_broker: MemoryBroker, topics: RunTopics, writer: LedgerWriter
) -> None:
    with a_writer(memory_broker, topics) as successor:
        with pytest.raises(Superseded, match=f"{successor.epoch.trainer_id} with epoch 2"):
            writer.commit(a_genesis(), weights=[notice])
        successor.commit(a_genesis(alpha=2.0))
    assert records_of(memory_broker, topics.steps) == [a_genesis(alpha=2.0)]
    assert records_of(memory_broker, topics.weights) == []


def test_a_trainer_that_took_too_long_in_a_transaction_is_not_called_replaced(
    memory_broker: MemoryBroker, topics: RunTopics, writer: LedgerWriter
) -> None:
    memory_broker.expire_transaction(topics.trainer_transactional_id)
    with pytest.raises(Expired, match="no other has taken over: start it again") as raised:
        writer.commit(a_genesis(), weights=[notice])
    assert exit_status(raised.value) == exit_status_expired
    assert records_of(memory_broker, topics.steps) == []
    with a_writer(memory_broker, topics) as again:
        again.commit(a_genesis())
    assert records_of(memory_broker, topics.steps) == [a_genesis()]


class SilentCommits:
    """A producer whose commits are suspended until nobody waits for their outcome."""

    def __init__(self, producer: MemoryTransactionalProducer, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        for name in ("begin", "send", "send_offsets", "close"):
            setattr(self, name, getattr(producer, name))

    def commit(self, timeout_seconds: float) -> None:
        self._meanwhile()
        raise BrokerTimeout(f"no answer within {timeout_seconds:g} s")


def test_an_unknown_outcome_is_a_take_over_where_the_log_says_so(
    memory_broker: MemoryBroker, topics: RunTopics, writer: LedgerWriter
) -> None:
    with ExitStack() as successors:

        def take_over() -> None:
            successors.enter_context(a_writer(memory_broker, topics))

        writer._producer = cast("TransactionalProducer", SilentCommits(writer_producer(writer), take_over))
        with pytest.raises(Superseded, match="with epoch 2"):
            writer.commit(a_genesis())


def test_an_unknown_outcome_stays_unknown_where_nobody_took_over_and_where_the_log_cannot_be_asked(
    topics: RunTopics, run_topics: RunTopics
) -> None:
    broker = MemoryBroker(block_seconds=0.05)
    FakeRun(broker, run_topics, num_partitions=4).create_topics()
    for meanwhile in (lambda: None, broker.pause):
        with a_writer(broker, topics) as writer:
            writer._producer = cast(
                "TransactionalProducer", SilentCommits(writer_producer(writer), meanwhile)
            )
            with pytest.raises(BrokerTimeout, match="no answer within"):
                writer.commit(a_genesis())


def writer_producer(writer: LedgerWriter) -> MemoryTransactionalProducer:
    return cast("MemoryTransactionalProducer", writer._producer)


def test_a_record_over_the_limit_is_refused_with_its_size_before_anything_is_sent(
    memory_broker: MemoryBroker, topics: RunTopics
) -> None:
    record = many_verdicts(5000)
    size = len(encode(record))
    with a_writer(memory_broker, topics, max_record_bytes=1 << 17) as writer:
        with pytest.raises(RecordTooLarge, match=f"5000 verdicts has {size} bytes"):
            writer.commit(record)
        writer.commit(a_genesis())
    assert [
        record.kind for record in records_of(memory_broker, topics.steps) if isinstance(record, LedgerRecord)
    ] == [LedgerKind.GENESIS]
