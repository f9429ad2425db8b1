"""One run that collects one batch: the real dispatcher, rollout workers and trainer as threads on a real broker.

The engine is simulated and in its own time; nothing else is. The workers load version 0 and get their grants before
the trainer writes genesis, so that the first task finds all of them ready. The figure is read from the log: from the
append time of the first task to that of the sample that completes the last group of the batch.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from producers.config import (
    DataConfig,
    DispatchConfig,
    EvaluationConfig,
    RewardConfig,
    RolloutConfig,
    SamplingConfig,
)
from producers.dispatcher.dispatcher import Dispatcher
from producers.dispatcher.settings import DispatcherSettings
from producers.engines.simulated import SimulatedEngine
from producers.prompts import ByteTokenizer, PromptRenderer
from producers.rewards import make_rewards
from producers.rollout.settings import RolloutSettings
from producers.rollout.worker import RolloutWorker, WorkerParts
from rollog.bench.draws import tokens_per_second
from rollog.bench.engine_clock import EngineClock
from rollog.bench.protection import longest_prompts, never_protected, prompts_with_time_to_be_trained
from rollog.bench.slots import full_speed, slower_beyond_64
from rollog.bench.training_engine import IdleTrainingEngine, weights_of
from rollog.broker.ports import TopicPartition
from rollog.broker.reading import read_to_end
from rollog.broker.topics import RunTopics, ensure_topics, runs_topic, topic_specs
from rollog.config import BrokerConfig, FreshnessConfig, GroupConfig, ModelConfig, RunConfig
from rollog.errors import BrokerTimeout, EngineError
from rollog.metrics import Metrics
from rollog.rules.filtering import filter_reason
from rollog.weights import WeightsStore
from schemas import (
    Disposition,
    LedgerKind,
    LedgerRecord,
    Prompt,
    RolloutTask,
    Sample,
    Status,
    WorkerState,
    WorkerStatus,
)
from schemas.codec import decode, encode
from schemas.headers import headers_of
from trainer.config import AlgorithmConfig, OptimizerConfig, TrainerConfig
from trainer.loop import Trainer
from trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from producers.engines.ports import GenerationRequest
    from rollog.bench.draws import Draw
    from rollog.bench.variants import Variant
    from rollog.broker.ports import Broker, Record

prefix = "rollog-bench"
num_prompts = 2000
"""More than any draw needs: a group's number is its prompt's."""

_longest_response_tokens = 1024
_ready_seconds = 60.0
_closing_seconds = 60.0
_poll_seconds = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What one run took, in seconds of the simulated engine, and what of that no ideal would take.

    Of a run of several steps it is the time of one step, without an ideal; `long_trained` is then the share of its
    longest prompts that were trained.
    """

    seconds: float
    ideal_seconds: float
    num_tasks: int
    long_trained: float = 0.0


def collect_batch(variant: Variant, draw: Draw, broker: Broker, home: Path, *, speed: float) -> Collected:
    """Run one draw in one way; `speed` is how many engine seconds pass in a real one.

    Raises ValueError for more groups than there are prompts for, whatever ended a role, or BrokerTimeout when the run
    did not end in time.
    """
    most_groups = num_prompts // 4
    if variant.num_groups + variant.redundant_groups > most_groups:
        raise ValueError(f"{variant.name} collects {variant.num_groups} groups; {most_groups} are possible")
    run = _Run(variant, draw, broker, home / secrets.token_hex(4), speed)
    try:
        run.create()
        with run.roles():
            run.wait_until_closed()
        return run.result()
    finally:
        run.remove()


@dataclass
class _Role:
    thread: threading.Thread
    errors: list[BaseException] = field(default_factory=list)


class _Run:
    """One run of one variant on one draw."""

    def __init__(self, variant: Variant, draw: Draw, broker: Broker, home: Path, speed: float) -> None:
        self._variant = variant
        self._draw = draw
        self._broker = broker
        self._home = home
        self._speed = speed
        self._name = f"bench-{home.name}"
        self._topics = RunTopics(prefix, self._name)
        self._store = WeightsStore((home / "weights").resolve().as_uri())
        self._stop = threading.Event()
        self._roles: list[_Role] = []
        self._sections = _Sections(variant)

    def create(self) -> None:
        """Topics, and version 0, which the trainer will publish once more with genesis."""
        with self._broker.admin() as admin:
            ensure_topics(admin, topic_specs(self._topics, self._sections.broker))
        notice = self._store.publish(0, weights_of(0))
        with self._broker.producer(client_id="bench") as producer:
            producer.send(self._topics.weights, 0, encode(notice), key=b"0", headers=headers_of(notice))
            producer.flush(_ready_seconds)

    @contextmanager
    def roles(self) -> Iterator[None]:
        """Start workers and dispatcher, wait until every worker is ready, start the trainer; end them all."""
        try:
            for number in range(self._variant.num_workers):
                self._start(f"worker-{number}", self._work)
            self._start("dispatcher", self._dispatch)
            self._wait_for_workers()
            self._start("trainer", self._train)
            yield
        finally:
            self._stop.set()
            for role in self._roles:
                role.thread.join(_closing_seconds)

    def wait_until_closed(self) -> None:
        """Wait until every role has ended by itself. Raises what ended one otherwise."""
        longest = _closing_seconds + self._variant.patience_seconds(self._draw) / self._speed
        deadline = time.monotonic() + longest
        while any(role.thread.is_alive() for role in self._roles):
            self._raise_errors()
            if time.monotonic() > deadline:
                raise BrokerTimeout(
                    f"{self._variant.name}, draw {self._draw.number}: not closed after {longest:.0f} s; "
                    "choose a lower --speed or fewer --lanes, or free the machine"
                )
            time.sleep(_poll_seconds)
        self._raise_errors()

    def result(self) -> Collected:
        """Read the time of the batch, or of the steps, from the log."""
        tasks = self._read(self._topics.tasks, self._variant.num_workers)
        issued = [record for record in tasks if isinstance(decode(record.value or b""), RolloutTask)]
        if self._variant.num_steps > 1:
            return self._result_of_steps(len(issued))
        completed_ms = _completed_ms(
            self._read(self._topics.samples, self._sections.broker.samples_partitions),
            self._sections.groups,
        )
        milliseconds = completed_ms - min(record.timestamp_ms for record in issued)
        return Collected(
            seconds=milliseconds / 1000 * self._speed,
            ideal_seconds=self._variant.ideal_seconds(self._draw),
            num_tasks=len(issued),
        )

    def _result_of_steps(self, num_tasks: int) -> Collected:
        ledger = [
            (record.timestamp_ms, found)
            for record in self._read(self._topics.steps, 1)
            if isinstance(found := decode(record.value or b""), LedgerRecord)
        ]
        stepped_ms = [timestamp for timestamp, found in ledger if found.kind is LedgerKind.STEP]
        trained = {
            closed.group_id
            for _, found in ledger
            for closed in found.closed_groups
            if closed.outcome is Disposition.TRAINED
        }
        num_seen = prompts_with_time_to_be_trained(self._variant)
        return Collected(
            seconds=(stepped_ms[-1] - stepped_ms[0]) / 1000 * self._speed / (len(stepped_ms) - 1),
            ideal_seconds=0.0,
            num_tasks=num_tasks,
            long_trained=fmean(group in trained for group in longest_prompts(self._draw, num_seen)),
        )

    def remove(self) -> None:
        """Delete the run's topics and files: hundreds of runs share one broker."""
        specs = topic_specs(self._topics, self._sections.broker)
        kept = runs_topic(prefix)
        with self._broker.admin() as admin:
            admin.delete_topics([spec.name for spec in specs if spec.name != kept])
        shutil.rmtree(self._home, ignore_errors=True)

    def _work(self, name: str) -> None:
        asyncio.run(self._worker(name).run())

    def _worker(self, name: str) -> RolloutWorker:
        sections = self._sections
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
            rollout=sections.rollout,
            weights_uri=self._store.uri,
        )
        rewards = make_rewards(sections.reward.function or "", sections.reward)
        parts = WorkerParts(
            broker=self._broker,
            engine=self._engine(),
            renderer=PromptRenderer(ByteTokenizer(), max_context_tokens=sections.model.max_context_tokens),
            training_rewards=rewards,
            evaluation_rewards=rewards,
            store=WeightsStore(self._store.uri),
            metrics=Metrics(),
        )
        return RolloutWorker(settings, parts, worker_id=name, stop=self._stop)

    def _engine(self) -> SimulatedEngine:
        slowdown = slower_beyond_64 if self._variant.slows_down else full_speed
        return SimulatedEngine(
            tokens_per_second=tokens_per_second,
            max_context_tokens=self._sections.model.max_context_tokens,
            clock=EngineClock(speed=self._speed, slowdown=slowdown),
            length_of=lambda request: self._draw.num_tokens(*rollout_of(request)),
        )

    def _dispatch(self, name: str) -> None:
        sections = self._sections
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
            dispatch=sections.dispatch,
        )
        dispatcher = Dispatcher(
            settings,
            self._broker,
            self._topics,
            Metrics(),
            dispatcher_id=name,
            prompts=[self._prompt(number) for number in range(num_prompts)],
            held_out=[],
        )
        dispatcher.run(self._stop)

    def _prompt(self, number: int) -> Prompt:
        passes = "true" if self._draw.passes(number) else "false"
        return Prompt(prompt_id=str(number), text=str(number), reward_inputs_json=f'{{"passes": {passes}}}')

    def _train(self, name: str) -> None:
        del name
        sections = self._sections
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
            algorithm=AlgorithmConfig(),
            optimizer=OptimizerConfig(),
            trainer=TrainerConfig(num_minibatches=1),
            weights_uri=self._store.uri,
            manifest_json="{}",
        )
        with Trainer(settings, self._broker, Metrics(), IdleTrainingEngine()) as trainer:
            trainer.run(self._stop)

    def _start(self, name: str, target: Callable[[str], None]) -> None:
        errors: list[BaseException] = []

        def run() -> None:
            try:
                target(name)
            except BaseException as error:  # noqa: BLE001 - raised where the run is waited for
                errors.append(error)

        role = _Role(threading.Thread(target=run, name=name), errors)
        self._roles.append(role)
        role.thread.start()

    def _raise_errors(self) -> None:
        for role in self._roles:
            for error in role.errors:
                raise error

    def _wait_for_workers(self) -> None:
        ready: set[str] = set()
        deadline = time.monotonic() + _ready_seconds
        with self._broker.consumer(client_id="bench") as consumer:
            consumer.assign({TopicPartition(self._topics.workers, 0): 0})
            while len(ready) < self._variant.num_workers:
                self._raise_errors()
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"only {sorted(ready)} of {self._variant.num_workers} workers were ready after "
                        f"{_ready_seconds:.0f} s; choose fewer --lanes, or free the machine"
                    )
                ready |= {status.worker_id for status in _statuses(consumer.poll(_poll_seconds))}

    def _read(self, topic: str, partitions: int) -> list[Record]:
        """All committed records of a topic, by append time."""
        with self._broker.consumer(client_id="bench") as consumer:
            found = list(read_to_end(consumer, topic, *range(partitions)))
        return sorted(found, key=lambda record: (record.timestamp_ms, record.partition, record.offset))


class _Sections:
    """The configuration of a variant's run."""

    def __init__(self, variant: Variant) -> None:
        self.run = RunConfig(num_steps=variant.num_steps)
        self.broker = BrokerConfig(samples_partitions=1, max_workers=variant.num_workers)
        self.model = ModelConfig(path="none", max_context_tokens=2 * _longest_response_tokens)
        self.groups = GroupConfig(
            groups_per_batch=variant.num_groups,
            group_size=variant.group_size,
            redundant_groups=variant.redundant_groups,
            filter_zero_signal=False,
            reward_mean_bounds=(0.5, 1.0),
        )
        self.freshness = FreshnessConfig(
            alpha=variant.alpha, protect_after=1 if variant.protects else never_protected
        )
        self.sampling = SamplingConfig(max_tokens=_longest_response_tokens)
        self.reward = RewardConfig(function="rollog.bench.verdicts:verdict", num_processes=0)
        self.rollout = RolloutConfig(engine="simulated", capacity=variant.slots_per_worker)
        # A lease must not run out on a machine that is busy with other things.
        self.dispatch = DispatchConfig(
            scheduling=variant.scheduling,
            replicate=variant.replicate,
            prefetch_tasks=variant.prefetch_tasks,
            lease_seconds=30.0,
        )


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


def _completed_ms(records: Iterable[Record], groups: GroupConfig) -> int:
    """Append time of the sample with which enough groups are complete and pass.

    Raises BrokerTimeout when the log holds no full batch.
    """
    finished: dict[int, list[Sample]] = {}
    num_passed = 0
    for record in records:
        sample = decode(record.value or b"")
        if not isinstance(sample, Sample) or sample.status is not Status.FINISHED or sample.reward is None:
            continue
        members = finished.setdefault(sample.group_id, [])
        members.append(sample)
        if len(members) == groups.group_size and filter_reason(members, groups) is None:
            num_passed += 1
            if num_passed == groups.groups_per_batch:
                return record.timestamp_ms
    raise BrokerTimeout(
        f"{num_passed} of {groups.groups_per_batch} groups were complete when the run closed; see its log"
    )
