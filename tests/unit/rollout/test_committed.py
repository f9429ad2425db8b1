"""Which versions a worker believes in: those that the ledger made."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.builders import LedgerBuilder, weights_sha256

from producers.rollout.committed import CommittedVersions
from rollog.kernel.broker.ports import TopicSpec
from schemas import WeightVersion
from schemas.codec import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.topics import RunTopics
    from schemas import LedgerRecord


class Ledger:
    """A ledger on a broker, and a worker's questions about it."""

    def __init__(self, broker: MemoryBroker, topics: RunTopics) -> None:
        self.builder = LedgerBuilder()
        self._broker = broker
        self._topics = topics
        with broker.admin() as admin:
            admin.create_topics([TopicSpec(name=topics.steps, num_partitions=1)])
        self.committed = CommittedVersions(broker, topics)

    def write(self, *records: LedgerRecord | bytes) -> None:
        with self._broker.producer(client_id="trainer") as producer:
            for record in records:
                value = record if isinstance(record, bytes) else encode(record)
                producer.send(self._topics.steps, 0, value, key=b"k")
            producer.flush(1.0)

    def is_foreign(self, version: int, sha256: str | None = None) -> bool:
        digest = weights_sha256(version) if sha256 is None else sha256
        notice = WeightVersion(version=version, sha256=digest, name="v", num_bytes=1)
        return asyncio.run(self.committed.is_foreign(notice))


@pytest.fixture(autouse=True)
def _looks_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producers.rollout.committed._look_seconds", 0.001)


@pytest.fixture
def ledger(memory_broker: MemoryBroker, run_topics: RunTopics) -> Iterator[Ledger]:
    ledger = Ledger(memory_broker, run_topics)
    yield ledger
    asyncio.run(ledger.committed.close())


def test_a_version_is_foreign_until_the_ledger_made_it_of_these_weights(ledger: Ledger) -> None:
    assert not ledger.is_foreign(0)  # nothing is known yet
    ledger.write(*ledger.builder.records)
    assert not ledger.is_foreign(0)
    assert ledger.is_foreign(0, "f" * 64)
    assert ledger.is_foreign(1)
    ledger.write(ledger.builder.step())
    assert not ledger.is_foreign(1)


def test_a_forged_record_of_the_ledger_makes_no_version(ledger: Ledger) -> None:
    genesis = ledger.builder.records[0]
    ledger.write(genesis, replace(genesis, version=1), b"garbage")
    assert ledger.is_foreign(1, weights_sha256(0))


def test_of_a_long_ledger_the_end_is_read_and_the_rest_when_it_is_asked_for(ledger: Ledger) -> None:
    for _ in range(400):
        ledger.builder.step()
    ledger.write(*ledger.builder.records)
    assert not ledger.is_foreign(400)
    assert 100 not in ledger.committed._versions
    assert not ledger.is_foreign(100)
    assert ledger.is_foreign(100, "f" * 64)
    ledger.write(ledger.builder.step())
    assert not ledger.is_foreign(401)


def test_a_notice_that_is_visible_before_its_step_is_waited_for(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.write(*ledger.builder.records)
    step = ledger.builder.step()
    looks: list[float] = []

    async def a_moment(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            ledger.write(step)

    monkeypatch.setattr("producers.rollout.committed.asyncio.sleep", a_moment)
    assert not ledger.is_foreign(1)
    assert len(looks) == 3


@pytest.mark.parametrize("num_strangers", [0, 20, 400])
def test_a_closed_ledger_is_closed_whatever_stands_behind_its_end(ledger: Ledger, num_strangers: int) -> None:
    ledger.write(*ledger.builder.records, *(ledger.builder.step() for _ in range(3)))
    assert not asyncio.run(ledger.committed.is_closed())
    close = ledger.builder.close()
    ledger.write(replace(close, sequence=17), close, *(b"stranger" for _ in range(num_strangers)))
    assert asyncio.run(ledger.committed.is_closed())


@pytest.mark.parametrize("num_strangers", [20, 400])
def test_one_who_looks_first_then_finds_it_closed(ledger: Ledger, num_strangers: int) -> None:
    ledger.write(*ledger.builder.records, *(ledger.builder.step() for _ in range(3)), ledger.builder.close())
    ledger.write(*(b"stranger" for _ in range(num_strangers)))
    assert asyncio.run(ledger.committed.is_closed())


def test_a_forged_close_closes_nothing(ledger: Ledger) -> None:
    ledger.write(*ledger.builder.records, ledger.builder.step())
    ledger.write(replace(ledger.builder.close(), previous_hash=b"\x01" * 32))
    assert not asyncio.run(ledger.committed.is_closed())
