"""Many workers that answer every task at once: a load for the dispatcher alone.

They speak the protocol of the rollout worker as far as the dispatcher sees it: heartbeats, grants, one finished sample
for each task. Nothing is generated, and one thread plays them all.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from producers.engines.ports import Generation, VersionSpan
from producers.rewards.functions import RewardResult
from producers.rollout.outcomes import Replica, finished_sample
from producers.rollout.publishing import RecordWriter
from rollog.kernel.broker.ports import TopicPartition
from schemas import (
    FinishReason,
    Grant,
    RolloutTask,
    Timings,
    WeightVersion,
    WorkerState,
    WorkerStatus,
    float32_array,
    int32_array,
)
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from threading import Event

    from producers.rollout.sender import Outgoing
    from rollog.kernel.broker.ports import Broker, Consumer, Producer, Record
    from rollog.kernel.broker.topics import RunTopics

_poll_seconds = 0.02
_heartbeat_seconds = 1.0
_num_tokens = 16
_generation = Generation(
    token_ids=int32_array(range(2, 2 + _num_tokens)),
    behaviour_logprobs=float32_array([-0.5] * _num_tokens),
    spans=(VersionSpan(version=0, start=0, end=_num_tokens),),
    finish_reason=FinishReason.STOP,
)


class AnsweringWorkers:
    """`names` are the workers, each with `capacity` slots; all serve version 0, whatever is published later."""

    def __init__(
        self, broker: Broker, topics: RunTopics, names: Iterable[str], *, capacity: int, max_record_bytes: int
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._names = tuple(names)
        self._capacity = capacity
        self._writer = RecordWriter(topics, max_record_bytes=max_record_bytes)
        self._grants: dict[str, Grant] = {}
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._digest = ""

    def run(self, stop: Event) -> None:
        """Answer until `stop` is set."""
        with (
            self._broker.consumer(client_id="answers") as consumer,
            self._broker.producer(client_id="answers") as producer,
        ):
            consumer.assign(
                {TopicPartition(topic, 0): 0 for topic in (self._topics.weights, self._topics.control)}
            )
            beaten_at = -_heartbeat_seconds
            while not stop.is_set():
                if self._digest and time.monotonic() - beaten_at >= _heartbeat_seconds:
                    beaten_at = time.monotonic()
                    self._beat(producer)
                self._take(consumer.poll(_poll_seconds), consumer, producer)

    def _take(self, records: Iterable[Record], consumer: Consumer, producer: Producer) -> None:
        num_granted = len(self._grants)
        for record in records:
            match decode(record.value or b""):
                case RolloutTask() as task:
                    self._answer(task, record.partition, producer)
                case Grant() as grant:
                    self._grants[grant.worker_id] = grant
                case WeightVersion(version=0) as notice:
                    self._digest = notice.digest
        if len(self._grants) > num_granted:
            self._read_tasks(consumer)

    def _read_tasks(self, consumer: Consumer) -> None:
        """Read the tasks of every grant: new ones from where the grant begins, the others on from where they are."""
        others = [TopicPartition(topic, 0) for topic in (self._topics.weights, self._topics.control)]
        places = {place: consumer.position(place) for place in others}
        for grant in self._grants.values():
            place = TopicPartition(self._topics.tasks, grant.partition)
            places[place] = consumer.position(place) if place in self._assigned else grant.start_offset
        self._assigned = frozenset(places)
        consumer.assign(places)

    def _answer(self, task: RolloutTask, partition: int, producer: Producer) -> None:
        sample = finished_sample(
            Replica(task),
            str(partition),
            _generation,
            prompt_token_ids=(1,),
            response_text="",
            reward=RewardResult(reward=1.0),
            digest_of=lambda _: self._digest,
            timings=Timings(),
        )
        self._send(self._writer.sample(sample, task.sample_partition)[0], producer)

    def _beat(self, producer: Producer) -> None:
        for name in self._names:
            grant = self._grants.get(name)
            status = WorkerStatus(
                worker_id=name,
                state=WorkerState.SERVING,
                capacity=self._capacity,
                served_version=0,
                served_digest=self._digest,
                grant_id=None if grant is None else grant.grant_id,
            )
            self._send(self._writer.heartbeat(status), producer)

    @staticmethod
    def _send(outgoing: Outgoing, producer: Producer) -> None:
        producer.send(
            outgoing.topic, outgoing.partition, outgoing.value, key=outgoing.key, headers=outgoing.headers
        )
