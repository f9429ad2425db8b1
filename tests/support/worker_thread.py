"""A rollout worker on a thread; the test plays dispatcher and trainer."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save

from producers.engines.simulated import SimulatedEngine
from producers.rewards.functions import RewardResult
from producers.rollout.prompts import ByteTokenizer, PromptRenderer
from producers.rollout.settings import RolloutSettings
from producers.rollout.worker import WorkerParts, open_worker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.broker.topics import OptionalTopic, topic_specs
from rollog.kernel.errors import RewardError
from rollog.kernel.metrics import Metrics
from rollog.kernel.weights import WeightsStore
from rollog.settings.environment import EnvironmentConfig
from rollog.settings.generation import RewardConfig, RolloutConfig, SamplingConfig
from rollog.settings.run import BrokerConfig, ModelConfig
from schemas import (
    DeadLetter,
    DispatcherEpoch,
    Grant,
    RolloutTask,
    RunClosed,
    Sample,
    SamplingParameters,
    WeightVersion,
    WorkerStatus,
)
from schemas.codec import decode, encode
from schemas.headers import headers_of
from support.builders import LedgerBuilder, a_task
from support.waiting import max_wait_seconds, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from producers.engines.ports import Engine, Generation, GenerationRequest
    from producers.rewards.ports import Rewards
    from producers.rollout.agents import Agents
    from producers.rollout.episodes import Episodes
    from producers.rollout.worker import RolloutWorker
    from rollog.kernel.broker.ports import Broker, Producer
    from rollog.kernel.broker.topics import RunTopics
    from schemas.records import Record

broker_config = BrokerConfig(samples_partitions=2, max_workers=3)
reward_function = "tests:none"


class LengthRewards:
    """The reward is the number of prompt characters; `behaviour` in the fields makes it fail, hang, or count turns."""

    async def start(self) -> None:
        pass

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        del response
        match fields.get("behaviour"):
            case "fail":
                raise RewardError("the reward function raised KeyError: 'x'")
            case "hang":
                await asyncio.Event().wait()
            case "one turn":
                return RewardResult(reward=1.0, turn_rewards=(0.5,))
            case "two turns":
                return RewardResult(reward=1.0, turn_rewards=(0.5, 0.5))
        return RewardResult(reward=float(len(str(prompt))), components={"part": 0.5})

    async def close(self) -> None:
        pass


@dataclass
class Stage:
    """The topics of a run, what dispatcher and trainer would write there, and what the worker answered."""

    broker: Broker
    topics: RunTopics
    home: Path
    producer: Producer
    store: WeightsStore
    worker_id: str = "worker-1"
    stop: threading.Event = field(default_factory=threading.Event)
    grant: Grant | None = None
    error: BaseException | None = None
    newest_epoch: int = 0

    def settings(self, **rollout: Any) -> RolloutSettings:
        config = {"engine": "simulated", "capacity": 4, "heartbeat_seconds": 0.05} | rollout
        return RolloutSettings(
            run=self.topics.run,
            prefix=self.topics.prefix,
            seed=0,
            name="worker",
            home=self.home,
            broker=broker_config,
            model=ModelConfig(max_context_tokens=256),
            sampling=SamplingConfig(),
            reward=RewardConfig(function=reward_function, num_processes=0),
            environment=EnvironmentConfig(),
            rollout=RolloutConfig(**config),
            weights_uri=self.store.uri,
            num_replicas=8,
        )

    def send(self, topic: str, record: Record, partition: int = 0) -> int:
        delivery = self.producer.send(topic, partition, encode(record), headers=headers_of(record))
        return delivery.offset(10)

    def publish(self, version: int) -> WeightVersion:
        """Commit a policy version."""
        notice = self.store.publish(version, save({"w": np.full(2, version, dtype=np.float32)}))
        self.send(self.topics.weights, notice)
        return notice

    def take_over(self, epoch: int = 1) -> None:
        """Dispatchers up to this epoch have taken the run over."""
        for number in range(self.newest_epoch + 1, epoch + 1):
            self.send(self.topics.control, DispatcherEpoch(epoch=number, dispatcher_id="d"))
        self.newest_epoch = max(epoch, self.newest_epoch)

    def say_closed(self) -> None:
        """A dispatcher says that the run is closed."""
        self.take_over()
        self.send(self.topics.control, RunClosed(epoch=self.newest_epoch))

    def close_run(self) -> None:
        """The trainer closes the ledger, and the dispatcher says so."""
        ledger = LedgerBuilder()
        ledger.close()
        for record in ledger.records:
            self.send(self.topics.steps, record)
        self.say_closed()

    def give_grant(self, grant_id: str = "1.1", partition: int = 0, epoch: int = 1) -> Grant:
        self.take_over(epoch)
        consumer = self.broker.consumer(client_id="grant")
        with consumer:
            place = TopicPartition(self.topics.tasks, partition)
            start = consumer.end_offsets([place])[place]
        self.grant = Grant(
            grant_id=grant_id, epoch=epoch, worker_id=self.worker_id, partition=partition, start_offset=start
        )
        self.send(self.topics.control, self.grant)
        return self.grant

    def order(self, record: Record) -> None:
        """Write to the worker's tasks partition."""
        assert self.grant is not None
        self.send(self.topics.tasks, record, self.grant.partition)

    def task(self, group: int, replica: int = 0, **changes: Any) -> RolloutTask:
        values = {"sample_partition": group % broker_config.samples_partitions, "grant_id": "1.1"}
        return a_task(group, replica, **(values | changes))

    def read(self, topic: str) -> list[Record]:
        return [decode(value) for value in self.values(topic) if value is not None]

    def values(self, topic: str) -> list[bytes | None]:
        with self.broker.consumer(client_id="reader") as consumer:
            count = {
                self.topics.samples: 2,
                self.topics.evaluations: 2,
                self.topics.tasks: 3,
                self.topics.turns: 2,
            }.get(topic, 1)
            return [record.value for record in read_to_end(consumer, topic, *range(count))]

    def samples(self, count: int, topic: str | None = None) -> list[Sample]:
        """Wait for that many samples, and see that there are no more."""
        place = topic or self.topics.samples
        found = wait_until(
            lambda: records if len(records := self.read(place)) >= count else None, message=f"{count} samples"
        )
        assert found is not None
        samples = [record for record in found if isinstance(record, Sample)]
        assert len(samples) == len(found) == count
        return sorted(samples, key=lambda sample: (sample.group_id, sample.replica))

    def sample(self) -> Sample:
        return self.samples(1)[0]

    def dead_letters(self) -> list[DeadLetter]:
        return [record for record in self.read(self.topics.dead_letters) if isinstance(record, DeadLetter)]

    def statuses(self) -> list[WorkerStatus]:
        return [record for record in self.read(self.topics.workers) if isinstance(record, WorkerStatus)]

    def status(self) -> WorkerStatus | None:
        found = self.statuses()
        return found[-1] if found else None

    def wait_for_status(
        self,
        condition: Callable[[WorkerStatus], bool],
        message: str = "",
        timeout_seconds: float = max_wait_seconds,
    ) -> WorkerStatus:
        # The newest one and all that come: on a busy machine a test sees few of them in time.
        begin = max(0, len(self.statuses()) - 1)

        def check() -> WorkerStatus | None:
            return next((status for status in self.statuses()[begin:] if condition(status)), None)

        found = wait_until(check, timeout_seconds, f"status {message}")
        assert found is not None
        return found

    def wait_until_serving(self, version: int, timeout_seconds: float = max_wait_seconds) -> None:
        self.wait_for_status(
            lambda status: status.served_version == version and status.grant_id is not None,
            f"serving {version}",
            timeout_seconds,
        )


@contextmanager
def a_stage(broker: Broker, topics: RunTopics, home: Path, weights: bytes | None = None) -> Iterator[Stage]:
    """Topics with an epoch and version 0."""
    with broker.admin() as admin:
        admin.create_topics(topic_specs(topics, broker_config, tuple(OptionalTopic)))
    with broker.producer(client_id="stage") as producer:
        stage = Stage(broker, topics, home, producer, WeightsStore(str(home / "weights")))
        stage.send(topics.control, DispatcherEpoch(epoch=1, dispatcher_id="d"))
        if weights is None:
            stage.publish(0)
        else:
            stage.send(topics.weights, stage.store.publish(0, weights))
        yield stage


def a_worker(
    stage: Stage,
    *,
    engine: Engine | None = None,
    rewards: Rewards | None = None,
    settings: RolloutSettings | None = None,
    metrics: Metrics | None = None,
    tokenizer: Any = None,
    episodes: Episodes | None = None,
    agents: Agents | None = None,
) -> AbstractAsyncContextManager[RolloutWorker]:
    """A worker of the stage's run, to be entered on the loop that it runs on."""
    scores = rewards or LengthRewards()
    parts = WorkerParts(
        broker=stage.broker,
        engine=engine or SimulatedEngine(tokens_per_second=5000, max_context_tokens=256),
        renderer=PromptRenderer(tokenizer or ByteTokenizer(), max_context_tokens=256),
        training_rewards=scores,
        evaluation_rewards=scores,
        store=stage.store,
        metrics=metrics or Metrics(),
        episodes=episodes,
        agents=agents,
    )
    return open_worker(settings or stage.settings(), parts, worker_id=stage.worker_id, stop=stage.stop)


@contextmanager
def running(
    stage: Stage,
    *,
    engine: Engine | None = None,
    rewards: Rewards | None = None,
    settings: RolloutSettings | None = None,
    metrics: Metrics | None = None,
    tokenizer: Any = None,
    episodes: Episodes | None = None,
    agents: Agents | None = None,
    expect_error: bool = False,
) -> Iterator[threading.Thread]:
    """A worker on a thread while the body runs; it is stopped at the end, and must end without an error."""

    async def work() -> None:
        async with a_worker(
            stage,
            engine=engine,
            rewards=rewards,
            settings=settings,
            metrics=metrics,
            tokenizer=tokenizer,
            episodes=episodes,
            agents=agents,
        ) as worker:
            await worker.run()

    def target() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:  # noqa: BLE001  # looked at below
            stage.error = error

    thread = threading.Thread(target=target, name="worker")
    thread.start()
    try:
        yield thread
    finally:
        stage.stop.set()
        thread.join(max_wait_seconds)
    assert not thread.is_alive()
    if not expect_error and stage.error is not None:
        raise stage.error


def with_prompt(task: RolloutTask, **changes: Any) -> RolloutTask:
    """The task with a changed prompt."""
    return replace(task, prompt=replace(task.prompt, **changes))


def slow_engine() -> SimulatedEngine:
    """Its responses take minutes, unless they are interrupted."""
    return SimulatedEngine(tokens_per_second=0.5, max_context_tokens=256)


class HeldEngine(SimulatedEngine):
    """Generates nothing until it is released. So a test sees a request under way, however slow the machine is."""

    def __init__(self) -> None:
        super().__init__(max_context_tokens=256)
        self._is_released = threading.Event()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Wait for `release`, then answer."""
        assert await asyncio.to_thread(self._is_released.wait, max_wait_seconds), "the test releases it"
        return await super().generate(request)

    def release(self) -> None:
        """From any thread."""
        self._is_released.set()


def long_sampling() -> SamplingParameters:
    return SamplingParameters(temperature=1.0, max_tokens=200)
