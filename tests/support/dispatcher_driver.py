"""A dispatcher on an in-memory broker, with the test playing workers and trainer by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from producers.dispatcher.settings import DispatcherSettings
from producers.dispatcher.startup import TakeOver
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.broker.topics import RunTopics, ensure_topics, topic_specs
from rollog.kernel.metrics import Metrics
from rollog.rules.alpha_control import alpha_of_step
from rollog.settings.environment import EnvironmentConfig
from rollog.settings.generation import (
    DataConfig,
    DispatchConfig,
    EvaluationConfig,
    RewardConfig,
    SamplingConfig,
)
from rollog.settings.run import BrokerConfig, RunConfig
from schemas import Grant, Prompt, RolloutTask, Sample, Segment, tasks_in
from schemas.codec import decode, encode
from schemas.headers import headers_of
from support.builders import LedgerBuilder, a_heartbeat, a_sample, digest_of, freshness_config, groups_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.dispatcher.dispatcher import Dispatcher
    from schemas import WeightVersion
    from schemas.records import Record

num_partitions = 2
max_workers = 3


def dispatcher_settings(**sections: Any) -> DispatcherSettings:
    values: dict[str, Any] = {
        "run": "test",
        "prefix": "rollog",
        "run_config": RunConfig(num_steps=100),
        "broker": BrokerConfig(samples_partitions=num_partitions, max_workers=max_workers),
        "groups": groups_config(),
        "freshness": freshness_config(alpha=0.0),
        "data": DataConfig(),
        "sampling": SamplingConfig(),
        "evaluation": EvaluationConfig(every_steps=0, sampled=False),
        "reward": RewardConfig(function="rewards:score"),
        "environment": EnvironmentConfig(),
        "dispatch": DispatchConfig(prefetch_tasks=0, lease_seconds=3.0),
    }
    return DispatcherSettings(**(values | sections))


class DispatcherDriver:
    """The broker, the clock, and what a test does in the place of the other roles."""

    def __init__(
        self,
        num_prompts: int = 50,
        num_held_out: int = 0,
        *,
        memory_broker: MemoryBroker | None = None,
        **sections: Any,
    ) -> None:
        self.settings = dispatcher_settings(**sections)
        self.topics = RunTopics(self.settings.prefix, self.settings.run)
        self.broker = memory_broker or MemoryBroker(block_seconds=0.0)
        with self.broker.admin() as admin:
            ensure_topics(admin, topic_specs(self.topics, self.settings.broker))
        self.producer = self.broker.producer(client_id="bench")
        self.ledger = LedgerBuilder(alpha=alpha_of_step(1, (), self.settings.freshness))
        self._num_published = 0
        self.now = 0.0
        self._beats: dict[str, dict[str, Any]] = {}
        self.prompts = [
            Prompt(prompt_id=str(number), text=f"prompt {number}") for number in range(num_prompts)
        ]
        self.held_out = [Prompt(prompt_id=f"h{number}", text="?") for number in range(num_held_out)]

    def dispatcher(self, *, without_heartbeat: Sequence[str] = ()) -> Dispatcher:
        """A dispatcher that has taken the run over; workers beat again as before, but for those `without_heartbeat`."""
        take_over = TakeOver(
            settings=self.settings,
            broker=self.broker,
            metrics=Metrics(),
            dispatcher_id="test",
            prompts=self.prompts,
            held_out=self.held_out,
            clock=lambda: self.now,
        )
        dispatcher = take_over.start()
        for worker_id, changes in list(self._beats.items()):
            if worker_id not in without_heartbeat:
                self.beat(worker_id, **changes)
        return dispatcher

    def turn(self, dispatcher: Dispatcher, times: int = 3) -> None:
        """Let the dispatcher run until it has seen what was written and has reacted."""
        for _ in range(times):
            dispatcher.run_once()

    def lose_ledger_begin(self) -> None:
        """Steps of a ledger whose genesis is not there."""
        builder = LedgerBuilder()
        for _ in range(2):
            self.producer.send(self.topics.steps, 0, encode(builder.step()))
        self.producer.flush(1.0)

    def publish_ledger(self) -> None:
        """Write the ledger records that were built since the last call."""
        for record in self.ledger.records[self._num_published :]:
            self.producer.send(self.topics.steps, 0, encode(record))
        self._num_published = len(self.ledger.records)
        self.producer.flush(1.0)

    def send_weights(self, notice: WeightVersion) -> None:
        self.producer.send(self.topics.weights, 0, encode(notice))
        self.producer.flush(1.0)

    def beat(self, worker_id: str = "worker-1", **changes: Any) -> None:
        self._beats[worker_id] = changes
        status = a_heartbeat(worker_id, **changes)
        self.producer.send(self.topics.workers, 0, encode(status), key=worker_id.encode())
        self.producer.flush(1.0)

    def leave(self, worker_id: str) -> None:
        del self._beats[worker_id]
        self.producer.send(self.topics.workers, 0, None, key=worker_id.encode())
        self.producer.flush(1.0)

    def end(self, task: RolloutTask, *, reward: float | None = None, version: int = 0, **changes: Any) -> int:
        """Write the sample that ends a task (of one replica); returns its offset."""
        values: dict[str, Any] = {
            "task_id": task.task_id,
            "kind": task.kind,
            "attempt": task.attempt,
            "epoch": task.epoch,
            "grant_id": task.grant_id,
            "worker_id": self._worker_of(task.grant_id),
            "seed": task.seed,
            "reward": float(task.replica % 2) if reward is None else reward,
            "segments": (Segment(version=version, weights_digest=digest_of(version), start=0, end=3),),
            "evaluation": task.evaluation,
            "pinned_version": task.pinned_version,
        }
        sample = replace(a_sample(task.group_id, task.replica, **values), **changes)
        topic = self.topics.samples if task.evaluation is None else self.topics.evaluations
        return self.write_sample(topic, task.sample_partition, sample)

    def _worker_of(self, grant_id: str) -> str:
        grants = [record for record in self.control() if isinstance(record, Grant)]
        return next(grant.worker_id for grant in grants if grant.grant_id == grant_id)

    def write_sample(self, topic: str, partition: int, sample: Sample) -> int:
        delivery = self.producer.send(topic, partition, encode(sample), headers=headers_of(sample))
        return delivery.offset(1.0)

    def read(self, topic: str, partitions: int = 1) -> list[Record]:
        """All committed records of a topic, decoded, partition after partition."""
        with self.broker.consumer(client_id="reader") as consumer:
            return [
                decode(record.value)
                for number in range(partitions)
                for record in read_to_end(consumer, topic, number)
                if record.value
            ]

    def tasks(self) -> list[RolloutTask]:
        """Every task of the log, alone in its record or not."""
        return [task for record in self.read(self.topics.tasks, max_workers) for task in tasks_in(record)]

    def control(self) -> list[Record]:
        return self.read(self.topics.control)


def started_driver(**sections: Any) -> DispatcherDriver:
    """A driver whose ledger has begun and whose worker was heard."""
    driver = DispatcherDriver(**sections)
    driver.publish_ledger()
    driver.beat()
    return driver
