"""The step transaction: all of it or nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.builders import LedgerBuilder, a_genesis, weights_sha256
from support.small_training import FakeRun

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.errors import ProducerFenced, RecordTooLarge
from rollog.rules.ledger_state import record_hash
from schemas import DeadLetter, Disposition, LedgerKind, LedgerRecord, Verdict, WeightVersion
from schemas.codec import decode, encode
from trainer.ledger.writer import LedgerWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.memory import MemoryBroker
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
    digest = writer.commit(record, weights=notice, dead_letters=[letter])
    assert digest == record_hash(encode(record))
    assert records_of(memory_broker, topics.steps) == [record]
    assert records_of(memory_broker, topics.weights) == [notice]
    assert records_of(memory_broker, topics.dead_letters) == [letter]
    assert memory_broker.committed_offsets[topics.trainer_group] == {
        TopicPartition(topics.samples, partition): partition + 1 for partition in range(4)
    }


def test_a_later_trainer_fences_this_one_and_nothing_of_it_is_seen(
    memory_broker: MemoryBroker, topics: RunTopics, writer: LedgerWriter
) -> None:
    with a_writer(memory_broker, topics) as successor:
        with pytest.raises(ProducerFenced):
            writer.commit(a_genesis(), weights=notice)
        successor.commit(a_genesis(alpha=2.0))
    assert records_of(memory_broker, topics.steps) == [a_genesis(alpha=2.0)]
    assert records_of(memory_broker, topics.weights) == []


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
