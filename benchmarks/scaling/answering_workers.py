"""Many workers that answer every task soon: a load for the dispatcher alone.

They speak the protocol of the rollout worker as far as the dispatcher sees it: heartbeats that name the open tasks,
grants, one finished sample for each task. Nothing is generated, and one thread plays them all.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from producers.engines.ports import Generation, VersionSpan
from producers.rewards.functions import RewardResult
from producers.rollout.outcomes import Replica, finished_sample
from producers.rollout.publishing import RecordWriter
from producers.rollout.scoring import Response
from rollog.kernel.broker.ports import TopicPartition
from schemas import (
    FinishReason,
    Grant,
    Revoke,
    RoleStatus,
    RolloutTask,
    RunRole,
    TaskBatch,
    Timings,
    WeightVersion,
    WorkerState,
    WorkerStatus,
    float32_array,
    int32_array,
    tasks_in,
)
from schemas.codec import decode, encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from threading import Event

    from producers.rollout.sender import Outgoing
    from rollog.kernel.broker.ports import Broker, Consumer, Producer, Record
    from rollog.kernel.broker.topics import RunTopics

_poll_seconds = 0.02
_heartbeat_seconds = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a task is answered with: response tokens, and the seconds for which it is open before.

    With `in_slots` these are the seconds in a slot: a task waits until one of its worker's is free.
    """

    num_tokens: int
    seconds: float
    in_slots: bool = False


at_once = Answer(num_tokens=16, seconds=0.0)


class AnsweringWorkers:
    """`names` are the workers, each with `capacity` slots; all serve version 0, whatever is published later."""

    def __init__(
        self,
        broker: Broker,
        topics: RunTopics,
        names: Iterable[str],
        *,
        capacity: int,
        max_record_bytes: int,
        answer: Answer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._broker = broker
        self._topics = topics
        self._names = frozenset(names)
        self._capacity = capacity
        self._writer = RecordWriter(topics, max_record_bytes=max_record_bytes)
        self._grants: dict[str, Grant] = {}
        self._worker_of: dict[str, str] = {}
        self._assigned: dict[int, str] = {}
        self._open: list[tuple[float, int, RolloutTask]] = []
        """A heap of the times at which tasks are answered; of equal ones in order of arrival."""
        self._slots: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * capacity)
        """By grant: when each slot is free."""
        self._empty_seconds = 0.0
        self._num_arrived = 0
        self._answer = answer
        self._generation = _generation(answer.num_tokens)
        self._digest = ""
        self._beaten_at = clock() - _heartbeat_seconds

    def run(self, stop: Event) -> None:
        """Answer until `stop` is set."""
        with (
            self._broker.consumer(client_id="answers") as consumer,
            self._broker.producer(client_id="answers") as producer,
        ):
            self.begin(consumer)
            while not stop.is_set():
                self.turn(consumer, producer, poll_seconds=_poll_seconds)

    def begin(self, consumer: Consumer) -> None:
        """Read weights and control from their beginnings."""
        consumer.assign(
            {TopicPartition(topic, 0): 0 for topic in (self._topics.weights, self._topics.control)}
        )

    def turn(
        self,
        consumer: Consumer,
        producer: Producer,
        *,
        poll_seconds: float,
        most_answers: int | None = None,
    ) -> int:
        """Take in what arrived and answer what is due, up to `most_answers`; returns how many were answered."""
        if self._digest and self._clock() - self._beaten_at >= _heartbeat_seconds:
            self._beaten_at = self._clock()
            self._beat(consumer, producer)
            self._beat_for_trainer(producer)
        self.take(consumer.poll(poll_seconds), consumer)
        num_answered = 0
        now = self._clock()
        while self._open and self._open[0][0] <= now and num_answered != most_answers:
            self._send_answer(heappop(self._open)[2], producer)
            num_answered += 1
        return num_answered

    def take(self, records: Iterable[Record], consumer: Consumer) -> None:
        """Take in what was read, and read the tasks of new grants."""
        for record in records:
            match decode(record.value or b""):
                case RolloutTask() | TaskBatch() as ordered:
                    for task in tasks_in(ordered):
                        self._num_arrived += 1
                        heappush(self._open, (self._due_at(task), self._num_arrived, task))
                case Grant() as grant if grant.worker_id in self._names:
                    self._grants[grant.worker_id] = grant
                    self._worker_of[grant.grant_id] = grant.worker_id
                case Revoke(grant_id=grant_id):
                    self._revoke(grant_id)
                case WeightVersion(version=0) as notice:
                    self._digest = notice.digest
        if self._assigned != {grant.partition: grant.grant_id for grant in self._grants.values()}:
            self._read_tasks(consumer)

    def _due_at(self, task: RolloutTask) -> float:
        now = self._clock()
        if not self._answer.in_slots:
            return now + self._answer.seconds
        slots = self._slots[task.grant_id]
        free_at = heappop(slots)
        begins = max(now, free_at)
        self._empty_seconds += begins - free_at
        heappush(slots, begins + self._answer.seconds)
        return begins + self._answer.seconds

    def empty_slot_seconds(self) -> float:
        """How long slots have been empty so far, all together; only what is added between two calls says anything."""
        now = self._clock()
        still = sum(max(0.0, now - free_at) for slots in self._slots.values() for free_at in slots)
        return self._empty_seconds + still

    def _revoke(self, grant_id: str) -> None:
        self._grants = {name: grant for name, grant in self._grants.items() if grant.grant_id != grant_id}
        self._open = [each for each in self._open if each[2].grant_id != grant_id]
        heapify(self._open)

    def _read_tasks(self, consumer: Consumer) -> None:
        """Read the tasks of every grant: new ones from where the grant begins, the others on from where they are."""
        others = [TopicPartition(topic, 0) for topic in (self._topics.weights, self._topics.control)]
        places = {place: consumer.position(place) for place in others}
        for grant in self._grants.values():
            place = TopicPartition(self._topics.tasks, grant.partition)
            goes_on = self._assigned.get(grant.partition) == grant.grant_id
            places[place] = consumer.position(place) if goes_on else grant.start_offset
        self._assigned = {grant.partition: grant.grant_id for grant in self._grants.values()}
        consumer.assign(places)

    def _send_answer(self, task: RolloutTask, producer: Producer) -> None:
        sample = finished_sample(
            Response.of_one_turn(Replica(task), self._generation, prompt_token_ids=(1,), text=""),
            self._worker_of[task.grant_id],
            reward=RewardResult(reward=1.0),
            digest_of=lambda _: self._digest,
            timings=Timings(),
        )
        self._send(self._writer.sample(sample, task.sample_partition)[0], producer)

    def _beat(self, consumer: Consumer, producer: Producer) -> None:
        open_tasks: defaultdict[str, list[str]] = defaultdict(list)
        for _, _, task in self._open:
            open_tasks[task.grant_id].append(task.task_id)
        for name in self._names:
            grant = self._grants.get(name)
            named = () if grant is None else tuple(open_tasks[grant.grant_id])
            status = WorkerStatus(
                worker_id=name,
                state=WorkerState.SERVING,
                capacity=self._capacity,
                served_version=0,
                served_digest=self._digest,
                grant_id=None if grant is None else grant.grant_id,
                open_tasks=named,
                first_versions=dict.fromkeys(named, 0),
                tasks_position=0
                if grant is None
                else consumer.position(TopicPartition(self._topics.tasks, grant.partition)),
            )
            self._send(self._writer.heartbeat(status), producer)

    def _beat_for_trainer(self, producer: Producer) -> None:
        """The trainer wrote genesis and left; as long as it is heard, records may hold several tasks."""
        status = RoleStatus(role=RunRole.TRAINER, role_id="answers", version=0)
        producer.send(
            self._topics.workers,
            0,
            encode(status),
            key=status.role.value.encode(),
            headers=headers_of(status),
        )

    @staticmethod
    def _send(outgoing: Outgoing, producer: Producer) -> None:
        producer.send(
            outgoing.topic, outgoing.partition, outgoing.value, key=outgoing.key, headers=outgoing.headers
        )


def _generation(num_tokens: int) -> Generation:
    return Generation(
        token_ids=int32_array([2 + index % 1000 for index in range(num_tokens)]),
        behaviour_logprobs=float32_array([-0.5] * num_tokens),
        spans=(VersionSpan(version=0, start=0, end=num_tokens),),
        finish_reason=FinishReason.STOP,
    )
