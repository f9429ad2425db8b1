"""The workers that only answer: what they read, and what they say of it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import pytest
from support.broker_topics import read_to_end
from support.builders import a_task, weights_sha256
from support.waiting import wait_until

from benchmarks.scaling.answering_workers import Answer, AnsweringWorkers
from rollog.kernel.broker.topics import ensure_topics, topic_specs
from rollog.settings.run import BrokerConfig
from schemas import Grant, Revoke, Sample, WeightVersion, WorkerStatus
from schemas.codec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.topics import RunTopics
    from schemas.records import Record

RecordT = TypeVar("RecordT", Sample, WorkerStatus)
broker_config = BrokerConfig(max_workers=2)
first_grant = Grant(grant_id="1.1", epoch=1, worker_id="worker-1", partition=0, start_offset=0)
second_grant = Grant(grant_id="1.2", epoch=1, worker_id="worker-1", partition=1, start_offset=0)


class Load:
    """Answering workers in a thread, on topics to which a test writes."""

    def __init__(self, broker: MemoryBroker, topics: RunTopics) -> None:
        self.topics = topics
        self._broker = broker
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        with broker.admin() as admin:
            ensure_topics(admin, topic_specs(topics, broker_config))
        self.write(
            topics.weights, 0, WeightVersion(version=0, sha256=weights_sha256(0), name="v0", num_bytes=1)
        )

    def start(self, answer: Answer) -> None:
        workers = AnsweringWorkers(
            self._broker,
            self.topics,
            ["worker-1"],
            capacity=4,
            max_record_bytes=broker_config.max_record_bytes,
            answer=answer,
        )
        self._threads.append(threading.Thread(target=workers.run, args=(self._stop,)))
        self._threads[-1].start()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def write(self, topic: str, partition: int, record: Record) -> None:
        with self._broker.producer(client_id="test") as producer:
            producer.send(topic, partition, encode(record))
            producer.flush(5.0)

    def samples(self) -> list[Sample]:
        return self._read(Sample, self.topics.samples, range(broker_config.samples_partitions))

    def heartbeats(self) -> list[WorkerStatus]:
        return self._read(WorkerStatus, self.topics.workers, range(1))

    def _read(self, kind: type[RecordT], topic: str, partitions: range) -> list[RecordT]:
        decoded = (decode(record.value or b"") for record in read_to_end(self._broker, topic, partitions))
        return [record for record in decoded if isinstance(record, kind)]


@pytest.fixture
def load(memory_broker: MemoryBroker, run_topics: RunTopics) -> Iterator[Load]:
    made = Load(memory_broker, run_topics)
    yield made
    made.end()


def test_a_worker_that_gets_another_partition_reads_that_one(load: Load) -> None:
    load.start(Answer(num_tokens=16, seconds=0.0))
    load.write(load.topics.control, 0, first_grant)
    load.write(load.topics.tasks, 0, a_task(0, grant_id="1.1", sample_partition=0))
    wait_until(lambda: len(load.samples()) == 1)
    load.write(load.topics.control, 0, Revoke(grant_id="1.1", epoch=1, worker_id="worker-1", reason="left"))
    load.write(load.topics.control, 0, second_grant)
    load.write(load.topics.tasks, 1, a_task(1, grant_id="1.2", sample_partition=0))
    wait_until(lambda: len(load.samples()) == 2)
    assert [(sample.group_id, sample.worker_id) for sample in load.samples()] == [
        (0, "worker-1"),
        (1, "worker-1"),
    ]


def test_heartbeats_name_the_open_tasks_and_how_far_tasks_are_read(load: Load) -> None:
    load.start(Answer(num_tokens=16, seconds=600.0))
    load.write(load.topics.control, 0, first_grant)
    task = a_task(0, grant_id="1.1", sample_partition=0)
    load.write(load.topics.tasks, 0, task)
    told = wait_until(lambda: [status for status in load.heartbeats() if status.open_tasks])
    assert list(told[-1].open_tasks) == [task.task_id]
    assert told[-1].tasks_position == 1
    assert told[-1].first_versions == {task.task_id: 0}
    assert load.samples() == []


def test_an_answer_has_as_many_tokens_as_asked_for(load: Load) -> None:
    load.start(Answer(num_tokens=1000, seconds=0.0))
    load.write(load.topics.control, 0, first_grant)
    load.write(load.topics.tasks, 0, a_task(0, grant_id="1.1", sample_partition=0))
    (sample,) = wait_until(load.samples)
    assert sample.num_tokens == 1000
