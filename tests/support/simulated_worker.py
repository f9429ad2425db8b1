"""A rollout worker without engine and asyncio: the real session, driven by hand, over any broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from producers.engines.ports import Generation, VersionSpan
from producers.rewards.functions import RewardResult
from producers.rollout import actions
from producers.rollout.outcomes import Replica, finished_sample, replicas_of, unfinished_sample
from producers.rollout.scoring import Response
from producers.rollout.session import WorkerSession
from rollog.kernel.broker.ports import TopicPartition
from rollog.rules.reading import control_record
from schemas import (
    FinishReason,
    Sample,
    Timings,
    WeightVersion,
    WorkerStatus,
    float32_array,
    int32_array,
)
from schemas.codec import SchemaError, decode, decode_as, encode
from schemas.headers import headers_of
from support.simulated_parts import SlowProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from producers.rollout.session import ReloadMode
    from producers.rollout.tasks import TaskLimits
    from rollog.kernel.broker.ports import Broker, Record
    from rollog.kernel.broker.topics import RunTopics
    from schemas import RolloutTask

load_attempts = 3


@dataclass(slots=True)
class Rollout:
    """One started task: the versions its tokens came from so far, one token each; how many replicas have them all."""

    task: RolloutTask
    versions: list[int] = field(default_factory=list)
    num_generated: int = 0

    @property
    def is_generating(self) -> bool:
        return self.num_generated < self.task.num_replicas


class SimulatedWorker:
    """One worker incarnation whose every move is made by the test."""

    def __init__(
        self,
        broker: Broker,
        topics: RunTopics,
        worker_id: str,
        *,
        capacity: int,
        reward_function: str,
        limits: TaskLimits,
        clock: Callable[[], float],
        num_task_partitions: int,
        max_scoring: int,
        reload: ReloadMode = "keep",
        has_late_rewards: bool = False,
    ) -> None:
        self._has_late_rewards = has_late_rewards
        self._limits = limits
        self._topics = topics
        self._capacity = capacity
        self._max_scoring = max_scoring
        self._control = TopicPartition(topics.control, 0)
        self._weights = TopicPartition(topics.weights, 0)
        self._consumer = broker.consumer(client_id=worker_id)
        self._consumer.assign({self._control: 0, self._weights: 0})
        self._rollouts: dict[str, Rollout] = {}
        self._fetching: WeightVersion | None = None
        self._swapping: WeightVersion | None = None
        self._leave: actions.Leave | None = None
        self.worker_id = worker_id
        self.producer = SlowProducer(broker.producer(client_id=worker_id))
        self.has_left = False
        self.session = WorkerSession(
            worker_id,
            capacity=capacity,
            load_attempts=load_attempts,
            reward_function=reward_function,
            clock=clock,
            num_task_partitions=num_task_partitions,
            max_scoring=max_scoring,
            reload=reload,
        )
        self.read()
        self._act(self.session.engine_ready())

    @property
    def num_running(self) -> int:
        return len(self._rollouts)

    @property
    def started(self) -> list[str]:
        """Tasks that generate or are scored, by age."""
        return list(self._rollouts)

    @property
    def generating(self) -> list[str]:
        """Those of them whose tokens are not all there."""
        return [task_id for task_id, rollout in self._rollouts.items() if rollout.is_generating]

    @property
    def _makes_tokens(self) -> bool:
        return self.session.served is not None and self._swapping is None

    def read(self, max_records: int | None = None) -> None:
        """Take in what arrived, in the order in which a poll returns it."""
        for record in self._consumer.poll(0.0, max_records):
            if record.topic == self._topics.tasks:
                self._take_task(record)
            elif record.topic == self._topics.control:
                decoded = control_record(record)
                if decoded is not None:
                    self._act(self.session.on_control(decoded))
            else:
                self._act(self.session.on_weights(decode_as(WeightVersion, record.value or b"")))

    def fetch(self, *, succeeds: bool = True) -> None:
        """Bring a fetch to its end; after one that failed try again."""
        notice, self._fetching = self._fetching, None
        if notice is None:
            self._act(self.session.retry_load())
        elif succeeds:
            self._act(self.session.fetched(notice))
        else:
            self._act(self.session.fetch_failed(notice, "the file is not there"))

    def load(self, *, succeeds: bool = True) -> None:
        """Bring a reload to its end; running rollouts go on under the new version."""
        if self._swapping is None:
            self.fetch()
        notice, self._swapping = self._swapping, None
        if notice is None:
            return
        if succeeds:
            for rollout in self._rollouts.values():
                if rollout.is_generating:
                    rollout.versions.append(notice.version)
            self._act(self.session.loaded(notice))
        else:
            self._act(self.session.load_failed(notice, "the file has other bytes"))

    def generate(self, which: int) -> None:
        """Make all tokens of one more replica of a task; it is scored from here on."""
        generating = self.generating
        if generating and self._makes_tokens:
            self._generate(self._rollouts[generating[which % len(generating)]])

    def _generate(self, rollout: Rollout) -> None:
        rollout.num_generated += 1
        self._act(self.session.replica_generated(rollout.task.task_id))

    def finish(self, which: int, score: Callable[[Replica], float | None]) -> None:
        """Bring one started task to its end; a reward of None is a failure."""
        if not self._rollouts or not self._makes_tokens:
            return
        task_id = list(self._rollouts)[which % len(self._rollouts)]
        rollout = self._rollouts.pop(task_id)
        while rollout.is_generating:
            self._generate(rollout)
        for replica in replicas_of(rollout.task):
            self._write(
                self._sample(replica, rollout.versions, score(replica)), rollout.task.sample_partition
            )
            self._act(self.session.replica_ended(task_id))

    def end_interrupted(self, score: Callable[[Replica], float | None]) -> None:
        """Bring those rollouts to their end that shall not finish."""
        for which in reversed(range(self.num_running)):
            if self.session.ending_of(list(self._rollouts)[which]) is not None:
                self.finish(which, score)

    def beat(self) -> None:
        """Write a heartbeat; one that was told to leave goes instead."""
        if self._leave is not None:
            self._go()
            return
        self._act(self.session.end_overdue())
        served, grant = self.session.served, self.session.grant
        status = WorkerStatus(
            worker_id=self.worker_id,
            state=self.session.state,
            capacity=self._capacity,
            served_version=None if served is None else served.version,
            served_digest=None if served is None else served.digest,
            grant_id=None if grant is None else grant.grant_id,
            epoch=self.session.epoch,
            tasks_position=self.session.tasks_position,
            open_tasks=tuple(dict.fromkeys([*self.session.open_task_ids, *self._unacknowledged()])),
            error=self.session.error,
            first_versions=self.session.first_versions,
            num_scoring=self.session.num_scoring,
        )
        key = self.worker_id.encode()
        self.producer.send(self._topics.workers, 0, encode(status), key=key, headers=headers_of(status))

    def check_bounds(self, num_slots: int, num_replicas: int) -> None:
        """It holds no more tasks of its grant than its slots and scoring places, and runs no more than its capacity."""
        grant = self.session.grant
        tasks = self.session._tasks
        entries = [*tasks._started.values(), *tasks._held.values()]
        held = [entry.task.task_id for entry in entries if grant and entry.task.grant_id == grant.grant_id]
        assert len(held) <= num_slots + self._max_scoring, f"{self.worker_id} holds {held}"
        assert self.session.num_running <= max(self._capacity, num_replicas)
        assert self.session.num_scoring <= self._max_scoring

    def leave(self) -> None:
        """Leave as after SIGTERM."""
        self._act(self.session.leave("the worker was stopped"))
        self._go()

    def _go(self) -> None:
        for rollout in self._rollouts.values():
            for replica in replicas_of(rollout.task):
                self._write(self._sample(replica, rollout.versions, None), rollout.task.sample_partition)
        self._rollouts.clear()
        self.producer.send(self._topics.workers, 0, None, key=self.worker_id.encode())
        self.producer.flush(0.0)
        self.has_left = True

    def _take_task(self, record: Record) -> None:
        grant = self.session.grant
        if grant is None or record.partition != grant.partition or record.offset < grant.start_offset:
            return
        try:
            decoded = self._limits.decoded(record)
        except SchemaError:
            self.session.on_undecodable_task(record.offset)
            return
        self._act(self.session.on_task(decoded, record.offset))

    def _act(self, wanted: Iterable[actions.Action]) -> None:
        for action in wanted:
            match action:
                case actions.Start(task=task):
                    assert self.session.served is not None
                    self._rollouts[task.task_id] = Rollout(task, [self.session.served.version])
                case actions.End(task=task, ending=ending):
                    for replica in replicas_of(task):
                        sample = unfinished_sample(replica, self.worker_id, ending, timings=Timings())
                        self._write(sample, task.sample_partition)
                case actions.Load(notice=notice):
                    self._fetching = notice
                case actions.Swap(notice=notice):
                    self._swapping = notice
                case actions.ReadTasks(partition=partition, start_offset=offset):
                    self._assign({TopicPartition(self._topics.tasks, partition): offset})
                case actions.StopReading():
                    self._assign({})
                case actions.Leave():
                    self._leave = action

    def _assign(self, tasks: dict[TopicPartition, int]) -> None:
        followed = (self._control, self._weights)
        self._consumer.assign({place: self._consumer.position(place) for place in followed} | tasks)

    def _sample(self, replica: Replica, versions: list[int], reward: float | None) -> Sample:
        ending = self.session.ending_of(replica.task.task_id)
        if ending is None and reward is None:
            ending = actions.failed("RewardError", "the reward function raised")
        if ending is not None:
            return unfinished_sample(
                replica, self.worker_id, ending, timings=Timings(), wasted_tokens=len(versions)
            )
        assert reward is not None
        draw = np.random.default_rng([replica.task.group_id, replica.number, replica.task.attempt])
        max_tokens = min(max(1, replica.task.sampling.max_tokens), 1000)
        length = max(len(versions), int(draw.integers(1, max_tokens + 1)))
        versions = versions + versions[-1:] * (length - len(versions))
        generation = Generation(
            token_ids=int32_array(draw.integers(0, 20, length)),
            behaviour_logprobs=float32_array(-draw.random(length)),
            spans=tuple(
                VersionSpan(version=version, start=place, end=place + 1)
                for place, version in enumerate(versions)
            ),
            finish_reason=FinishReason.STOP if length < max_tokens else FinishReason.LENGTH,
        )
        return finished_sample(
            Response.of_one_turn(replica, generation, prompt_token_ids=[1, 2], text=""),
            self.worker_id,
            reward=None if self._has_late_rewards else RewardResult(reward=reward),
            digest_of=self.session.digest_of,
            timings=Timings(),
        )

    def _write(self, sample: Sample, partition: int) -> None:
        self.producer.send(self._topics.samples, partition, encode(sample), headers=headers_of(sample))

    def _unacknowledged(self) -> list[str]:
        """Tasks whose samples are on their way."""
        found = (decode(value) for value in self.producer.values_on_their_way() if value is not None)
        return [record.task_id for record in found if isinstance(record, Sample)]
