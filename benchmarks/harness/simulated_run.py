"""One run of a benchmark: the real dispatcher, rollout workers and trainer as threads on a real broker.

The engines are simulated and in their own time; nothing else is. The workers load version 0 and get their grants
before the trainer writes genesis, so that the first task finds all of them ready. Several processes may each hold a
part of one run: they share its directory, and with it its name.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.harness.engine_clock import EngineClock, full_speed, slower_beyond_64
from benchmarks.harness.workload import tokens_per_second
from producers.dispatcher.settings import DispatcherSettings
from producers.dispatcher.startup import TakeOver
from producers.engines.simulated import SimulatedEngine
from producers.rewards.choice import make_rewards
from producers.rollout.prompts import ByteTokenizer, PromptRenderer
from producers.rollout.settings import RolloutSettings
from producers.rollout.worker import WorkerParts, open_worker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.broker.topics import RunTopics, ensure_topics, runs_topic, topic_specs
from rollog.kernel.errors import BrokerTimeout, EngineError
from rollog.kernel.metrics import Metrics
from rollog.kernel.shared_memory import WorkerPresence
from rollog.kernel.weights import WeightsStore
from rollog.settings.generation import (
    DataConfig,
    DispatchConfig,
    EvaluationConfig,
    RewardConfig,
    RolloutConfig,
    SamplingConfig,
)
from rollog.settings.groups import GroupConfig
from rollog.settings.run import BrokerConfig, ModelConfig, RunConfig
from rollog.settings.settings import Settings
from rollog.settings.training import TrainerConfig
from schemas import LedgerRecord, Prompt, WorkerState, WorkerStatus
from schemas.codec import decode, encode
from schemas.headers import headers_of
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.settings import TrainerSettings
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from benchmarks.harness.variant import Job, Variant
    from producers.engines.ports import GenerationRequest
    from rollog.kernel.broker.ports import Broker, Record
    from rollog.kernel.versions.tensors import Export
    from schemas import WeightVersion
    from trainer.loop import Trainer

prefix = "rollog-bench"
num_prompts = 2000
"""More than any workload needs: a group's number is its prompt's."""

_longest_response_tokens = 1024
_ready_seconds = 60.0
closing_seconds = 60.0
_poll_seconds = 0.02


class SlowStore(WeightsStore):
    """Every fetch takes `seconds` of real time, in the thread that fetches."""

    def __init__(self, uri: str, seconds: float) -> None:
        super().__init__(uri)
        self._seconds = seconds

    def fetch(self, notice: WeightVersion, directory: Path) -> Path:
        """Wait, then fetch as the store does."""
        time.sleep(self._seconds)
        return super().fetch(notice, directory)


@dataclass
class _Role:
    thread: threading.Thread
    errors: list[BaseException] = field(default_factory=list)


class SimulatedRun:
    """The roles of one run, of which this process may hold all or some."""

    def __init__(self, job: Job, broker: Broker, home: Path) -> None:
        self._variant = job.variant
        self._workload = job.workload
        self._broker = broker
        self._home = home
        self._speed = job.speed
        self._name = f"bench-{home.name}"
        self.topics = RunTopics(prefix, self._name)
        self._store = WeightsStore((home / "weights").resolve().as_uri())
        self.stop = threading.Event()
        self._roles: list[_Role] = []
        self.sections = self.settings()

    def settings(self) -> Settings:
        """The configuration of the run."""
        return settings_of(self._variant)

    @property
    def shared(self) -> Path | None:
        """Where workers have their copy of a version together; without one each has its own below `home`."""
        return None

    def create(self) -> None:
        """Topics, and version 0, which the trainer will publish once more with genesis."""
        with self._broker.admin() as admin:
            ensure_topics(admin, topic_specs(self.topics, self.sections.broker))
        notice = self._store.publish_tensors(0, self._initial_weights())
        with self._broker.producer(client_id="bench") as producer:
            producer.send(self.topics.weights, 0, encode(notice), key=b"0", headers=headers_of(notice))
            producer.flush(_ready_seconds)

    @contextmanager
    def roles(self) -> Iterator[None]:
        """Start workers and dispatcher, wait until every worker is ready, start the trainer; end them all."""
        try:
            self.start_workers(range(self._variant.num_workers))
            self.start_dispatcher()
            self.wait_for_workers()
            self.start_trainer()
            yield
        finally:
            self.end()

    def start_workers(self, numbers: Iterable[int]) -> None:
        """Start the workers of these numbers."""
        for number in numbers:
            self.start(worker_name(number), self._work)

    def start_dispatcher(self) -> None:
        """Start the dispatcher."""
        self.start("dispatcher", self._dispatch)

    def start_trainer(self) -> None:
        """Start the trainer, which writes genesis: with it the tasks begin."""
        self.start("trainer", self._train)

    def begin(self) -> None:
        """Let a trainer write genesis and leave: the tasks begin, and none is ever trained."""
        with self._trainer():
            pass

    def end(self) -> None:
        """End every role that was started here."""
        self.stop.set()
        for role in self._roles:
            role.thread.join(closing_seconds)

    def wait_until_closed(self, max_engine_seconds: float) -> None:
        """Wait until every role has ended by itself. Raises BrokerTimeout, or what ended a role otherwise."""
        longest = closing_seconds + max_engine_seconds / self._speed
        deadline = time.monotonic() + longest
        while any(role.thread.is_alive() for role in self._roles):
            self.raise_errors()
            if time.monotonic() > deadline:
                raise BrokerTimeout(
                    f"{self._variant.name}, workload {self._workload.number}: not closed after {longest:.0f} s; "
                    "choose a lower --speed or fewer --processes, or free the machine"
                )
            time.sleep(_poll_seconds)
        self.raise_errors()

    def samples(self) -> list[Record]:
        """All records of `samples`, by append time."""
        return self.read(self.topics.samples, self.sections.broker.samples_partitions)

    def ledger(self) -> list[tuple[int, LedgerRecord]]:
        """All records of the ledger, each with its append time in milliseconds."""
        return [
            (record.timestamp_ms, found)
            for record in self.read(self.topics.steps, 1)
            if isinstance(found := decode(record.value or b""), LedgerRecord)
        ]

    def remove(self) -> None:
        """Delete the run's topics and files: hundreds of runs share one broker."""
        specs = topic_specs(self.topics, self.sections.broker)
        kept = runs_topic(prefix)
        with self._broker.admin() as admin:
            admin.delete_topics([spec.name for spec in specs if spec.name != kept])
        shutil.rmtree(self._home, ignore_errors=True)

    def _work(self, name: str) -> None:
        asyncio.run(self._run_worker(name))

    async def _run_worker(self, name: str) -> None:
        sections = self.sections
        settings = RolloutSettings(
            run=self._name,
            prefix=prefix,
            seed=0,
            name=name,
            home=self._home,
            broker=sections.broker,
            model=sections.model,
            sampling=sections.sampling,
            reward=sections.reward,
            environment=sections.environment,
            rollout=sections.rollout,
            weights_uri=self._store.uri,
            num_replicas=sections.groups.num_replicas,
            shared=self.shared,
        )
        parts = self.worker_parts(name)
        with nullcontext() if self.shared is None else WorkerPresence(self.shared):
            async with open_worker(settings, parts, worker_id=name, stop=self.stop) as worker:
                await worker.run()

    def worker_parts(self, name: str) -> WorkerParts:
        """What the worker of that name is made of."""
        sections = self.sections
        rewards = make_rewards(sections.reward.function or "", sections.reward)
        return WorkerParts(
            broker=self._broker,
            engine=self._engine(self._slowness(name)),
            renderer=PromptRenderer(ByteTokenizer(), max_context_tokens=sections.model.max_context_tokens),
            training_rewards=rewards,
            evaluation_rewards=rewards,
            store=SlowStore(self._store.uri, self._variant.fetch_seconds / self._speed),
            metrics=Metrics(),
        )

    def _slowness(self, worker: str) -> float:
        """How many times longer everything takes at this worker."""
        is_last = worker == worker_name(self._variant.num_workers - 1)
        return self._variant.last_worker_slowness if is_last else 1.0

    def _engine(self, slowness: float) -> SimulatedEngine:
        slowdown = slower_beyond_64 if self._variant.slows_down else full_speed
        return SimulatedEngine(
            tokens_per_second=tokens_per_second,
            max_context_tokens=self.sections.model.max_context_tokens,
            load_seconds=self._variant.swap_seconds,
            clock=EngineClock(speed=self._speed / slowness, slowdown=slowdown),
            length_of=lambda request: self._workload.num_tokens(*rollout_of(request)),
        )

    def _initial_weights(self) -> Export:
        engine = self.training_engine()
        engine.start(self.sections.model.path or "")
        return engine.export_weights

    def _dispatch(self, name: str) -> None:
        with self.take_over(name).start() as dispatcher:
            dispatcher.run(self.stop)

    def take_over(self, name: str) -> TakeOver:
        """What makes the run's dispatcher."""
        sections = self.sections
        settings = DispatcherSettings(
            run=self._name,
            prefix=prefix,
            run_config=sections.run,
            broker=sections.broker,
            groups=sections.groups,
            freshness=sections.freshness,
            data=DataConfig(shuffle=False),
            sampling=sections.sampling,
            evaluation=EvaluationConfig(every_steps=0, sampled=False),
            reward=sections.reward,
            environment=sections.environment,
            dispatch=sections.dispatch,
        )
        return TakeOver(
            settings=settings,
            broker=self._broker,
            metrics=Metrics(),
            dispatcher_id=name,
            prompts=[self.prompt(number) for number in range(num_prompts)],
            held_out=[],
        )

    def prompt(self, number: int) -> Prompt:
        """The prompt of that number, which is that of a group as well."""
        row: dict[str, object] = {"passes": self._workload.passes(number)}
        if self._variant.reward_seconds:
            row["judge_seconds"] = self._variant.reward_seconds / self._speed
        return Prompt(prompt_id=str(number), text=str(number), reward_inputs_json=json.dumps(row))

    def _train(self, name: str) -> None:
        del name
        with self._trainer() as trainer:
            trainer.run(self.stop)

    def _trainer(self) -> Trainer:
        sections = self.sections
        settings = TrainerSettings(
            run=self._name,
            prefix=prefix,
            seed=0,
            home=self._home,
            run_config=sections.run,
            broker=sections.broker,
            model=sections.model,
            groups=sections.groups,
            freshness=sections.freshness,
            sampling_temperature=sections.sampling.temperature,
            algorithm=sections.algorithm,
            optimizer=sections.optimizer,
            trainer=sections.trainer,
            weights_uri=self._store.uri,
            has_patches=sections.weights.patches == "auto",
            manifest_json="{}",
        )
        return start_trainer(settings, self._broker, Metrics(), self.training_engine())

    def training_engine(self) -> SimulatedTrainingEngine:
        """What trains."""
        return SimulatedTrainingEngine(step_seconds=self._variant.train_seconds / self._speed)

    def start(self, name: str, target: Callable[[str], None]) -> None:
        """Run a role, which is told its name, in a thread of its own."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                target(name)
            except BaseException as error:  # noqa: BLE001 - raised where the run is waited for
                errors.append(error)

        role = _Role(threading.Thread(target=run, name=name), errors)
        self._roles.append(role)
        role.thread.start()

    def raise_errors(self) -> None:
        """Raise what ended a role, if anything did."""
        for role in self._roles:
            for error in role.errors:
                raise error

    def wait_for_workers(self) -> None:
        """Wait until every worker serves and has its grant. Raises EngineError, or what ended a role."""
        ready: set[str] = set()
        deadline = time.monotonic() + _ready_seconds
        with self._broker.consumer(client_id="bench") as consumer:
            consumer.assign({TopicPartition(self.topics.workers, 0): 0})
            while len(ready) < self._variant.num_workers:
                self.raise_errors()
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"only {sorted(ready)} of {self._variant.num_workers} workers were ready after "
                        f"{_ready_seconds:.0f} s; choose fewer --processes, or free the machine"
                    )
                ready |= {status.worker_id for status in _statuses(consumer.poll(_poll_seconds))}

    def read(self, topic: str, partitions: int) -> list[Record]:
        """All committed records of a topic, by append time."""
        with self._broker.consumer(client_id="bench") as consumer:
            found = list(read_to_end(consumer, topic, *range(partitions)))
        return sorted(found, key=lambda record: (record.timestamp_ms, record.partition, record.offset))


def settings_of(variant: Variant) -> Settings:
    """The configuration of a variant's run."""
    return Settings(
        run=RunConfig(num_steps=variant.num_steps),
        broker=BrokerConfig(samples_partitions=1, max_workers=variant.num_workers),
        model=ModelConfig(path="none", max_context_tokens=2 * _longest_response_tokens),
        groups=GroupConfig(
            groups_per_batch=variant.num_groups,
            group_size=variant.group_size,
            redundant_groups=variant.redundant_groups,
            redundant_replicas=variant.redundant_replicas,
            filter_zero_signal=False,
            reward_mean_bounds=(0.5, 1.0),
        ),
        freshness=variant.freshness,
        sampling=SamplingConfig(max_tokens=_longest_response_tokens),
        reward=_reward_of(variant),
        rollout=RolloutConfig(engine="simulated", capacity=variant.slots_per_worker),
        # A lease must not run out on a machine that is busy with other things.
        dispatch=DispatchConfig(
            scheduling=variant.scheduling,
            replicate=variant.replicate,
            prefetch_tasks=variant.prefetch_tasks,
            lease_seconds=30.0,
        ),
        trainer=TrainerConfig(num_minibatches=1),
    )


def _reward_of(variant: Variant) -> RewardConfig:
    """A judge is asked from a reward process, as in a real run; a verdict that is known is looked up."""
    if variant.reward_seconds:
        return RewardConfig(
            function="benchmarks.harness.verdicts:judged_verdict", num_processes=1, timeout_seconds=600.0
        )
    return RewardConfig(function="benchmarks.harness.verdicts:verdict", num_processes=0)


def worker_name(number: int) -> str:
    """Name of the worker with that number."""
    return f"worker-{number}"


def rollout_of(request: GenerationRequest) -> tuple[int, int]:
    """(group, replica) of a request: the prompt is the group's number, the request's name ends with the replica."""
    group = int(ByteTokenizer().decode(request.prompt_token_ids))
    return group, int(request.request_id.rpartition("/")[2])


def _statuses(records: Iterable[Record]) -> Iterator[WorkerStatus]:
    """Heartbeats of workers that serve and have their grant."""
    for record in records:
        status = None if record.value is None else decode(record.value)
        if isinstance(status, WorkerStatus) and status.state is WorkerState.SERVING and status.grant_id:
            yield status
