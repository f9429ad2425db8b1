"""A whole run in one thread with simulated time: real dispatcher, sessions and trainer, and a test that plays fate.

Nothing happens by itself. Every method is one event; after it the auditor has looked at everything that was written.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import fsspec

from producers.dispatcher.startup import TakeOver
from producers.rollout.tasks import TaskLimits
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import OptionalTopic, RunTopics, ensure_topics, topic_specs
from rollog.kernel.errors import BrokerTimeout, Expired, Superseded
from rollog.kernel.lifecycle import Component
from rollog.kernel.metrics import Metrics
from rollog.kernel.weights import WeightsStore
from schemas import Prompt, RoleStatus, RunRole, tasks_in
from schemas.codec import decode, encode
from schemas.headers import headers_of
from support.late_background import late_background
from support.late_scorer import LateScorer
from support.rebuilt_state import facts_of_state, facts_of_trainer, rebuilt_state
from support.run_auditor import RunAuditor
from support.simulated_parts import InstantBroker, Killed, SlowProducer
from support.simulated_plan import (
    Plan,
    max_scoring,
    max_workers,
    num_partitions,
    prefetch_tasks,
    reward_function,
)
from support.simulated_worker import SimulatedWorker
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from producers.dispatcher.dispatcher import Dispatcher
    from producers.dispatcher.settings import DispatcherSettings
    from producers.rollout.outcomes import Replica
    from rollog.kernel.broker.ports import Record
    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings

calm_rounds = 600
round_seconds = 0.25
looks_between_audits = 10


@dataclass
class SimulatedRun(Component):
    """The world of one run. Enter it, make events happen, and `finish` it."""

    plan: Plan
    now: float = 0.0
    broker: InstantBroker = field(default_factory=InstantBroker)
    dispatcher: Dispatcher | None = None
    dispatcher_producer: SlowProducer | None = None
    trainer: Trainer | None = None
    overtaken_dispatchers: list[Dispatcher] = field(default_factory=list)
    overtaken_trainers: list[Trainer] = field(default_factory=list)
    workers: list[SimulatedWorker] = field(default_factory=list)
    dead_producers: list[SlowProducer] = field(default_factory=list)
    num_workers_started: int = 0
    num_looks: int = 0
    is_audited: bool = True
    rewards_vary: bool = True
    same_reward: float | None = None
    manifest_json_of: Callable[[SimulatedRun], str] | None = None
    scorer: LateScorer | None = None

    def __enter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix="simulated-run-"))
        self.topics = RunTopics("rollog", self.home.name.lower().replace("_", "-"))
        with self.broker.admin() as admin:
            optional = [OptionalTopic.REWARDS] if self.plan.late_rewards else []
            specs = topic_specs(self.topics, self.plan.broker, optional)
            ensure_topics(admin, specs)
        if self.plan.late_rewards:
            self.scorer = LateScorer(self.broker, self.topics)
        self.auditor = RunAuditor(
            self.broker,
            self.topics,
            self.plan.groups,
            self.plan.freshness,
            self.plan.num_steps,
            num_partitions,
            max_workers,
        )
        self.hand = self.broker.producer(client_id="hand")
        self.metrics = Metrics()
        self.start_trainer()
        self.start_dispatcher()
        self.start_worker()
        return self

    def close(self) -> None:
        """Remove the run's files."""
        shutil.rmtree(self.home)
        store = fsspec.filesystem("memory")
        if store.exists(self.topics.run):
            store.rm(self.topics.run, recursive=True)

    def look(self) -> None:
        """Hold the invariants."""
        if self.broker.is_paused:
            return
        self.auditor.look()
        self.num_looks += 1
        if self.is_audited and self.num_looks % looks_between_audits == 0:
            self.auditor.audit_live(WeightsStore(self.trainer_settings.weights_uri))
        if self.dispatcher_producer is None or not self.dispatcher_producer.num_on_their_way:
            self.auditor.check_issues()
        for worker in self.workers:
            worker.check_bounds(self.plan.num_slots + prefetch_tasks, self.plan.groups.num_replicas)

    def compare_snapshots(self) -> None:
        """Hold that the snapshots and what was written since say what the whole log says."""
        if self.broker.is_paused:
            return
        rebuilt = rebuilt_state(self.broker, self._dispatcher_settings)
        whole = rebuilt_state(self.broker, replace(self._dispatcher_settings, snapshot=None))
        assert facts_of_state(rebuilt) == facts_of_state(whole)
        assert facts_of_trainer(self.broker, self.trainer_settings, with_snapshot=True) == facts_of_trainer(
            self.broker, self.trainer_settings, with_snapshot=False
        )

    # Dispatchers

    def start_dispatcher(self) -> None:
        """A dispatcher takes over, whether or not another one runs."""
        if self.broker.is_paused:
            return
        if self.dispatcher is not None:
            self.overtaken_dispatchers.append(self.dispatcher)
        self._bury(self.dispatcher_producer)
        producer = SlowProducer(self.broker.producer(client_id="dispatcher"))
        take_over = TakeOver(
            settings=self._dispatcher_settings,
            broker=self.broker,
            metrics=self.metrics,
            dispatcher_id="simulated",
            prompts=[Prompt(prompt_id=str(n), text=str(n)) for n in range(self.plan.num_prompts)],
            held_out=[],
            clock=lambda: self.now,
        )
        consumer = self.broker.consumer(client_id="dispatcher")
        dispatcher = take_over.complete(producer, consumer, take_over.begin(consumer))
        self.dispatcher, self.dispatcher_producer = dispatcher, producer

    def turn_dispatcher(self) -> None:
        if self.dispatcher is None or self.dispatcher.state.is_run_closed:
            return
        try:
            self.dispatcher.run_once()
        except BrokerTimeout:
            assert self.broker.is_paused
            self.kill_dispatcher()

    def kill_dispatcher(self) -> None:
        self._bury(self.dispatcher_producer)
        self.dispatcher = self.dispatcher_producer = None

    def turn_overtaken_dispatcher(self, which: int) -> None:
        """One that was overtaken looks at the log: it must notice, and end."""
        if not self.overtaken_dispatchers or self.broker.is_paused:
            return
        overtaken = self.overtaken_dispatchers.pop(which % len(self.overtaken_dispatchers))
        try:
            overtaken.run_once()
        except Superseded:
            return
        raise AssertionError("an overtaken dispatcher went on")

    # Trainers

    def start_trainer(self) -> None:
        """A trainer takes over, whether or not another one runs."""
        if self.broker.is_paused:
            return
        if self.trainer is not None:
            self.overtaken_trainers.append(self.trainer)
        self.broker.cut = None
        self.trainer = start_trainer(
            self.trainer_settings,
            self.broker,
            self.metrics,
            SimulatedTrainingEngine(),
            clock=lambda: self.now,
            background=late_background(self.plan.looks_in_flight),
        )
        # As the thread of its heartbeats does: without it no record holds several tasks.
        status = RoleStatus(role=RunRole.TRAINER, role_id="simulated")
        key = status.role.value.encode()
        self.hand.send(self.topics.workers, 0, encode(status), key=key, headers=headers_of(status))

    def turn_trainer(self) -> None:
        if self.trainer is None or self.trainer.ledger.is_closed:
            return
        try:
            self.trainer.run_once()
        except (Killed, Expired):
            self.kill_trainer()
        except BrokerTimeout:
            assert self.broker.is_paused
            self.kill_trainer()

    def suspend_trainer(self) -> None:
        """It was suspended inside a transaction: the broker takes nothing more from it, though nobody took over."""
        if self.trainer is not None:
            self.broker.expire_transaction(self.topics.trainer_transactional_id)

    def kill_trainer(self) -> None:
        self.trainer = None

    def turn_overtaken_trainer(self, which: int) -> None:
        """One that was overtaken goes on as if nothing were: it is fenced as soon as it commits."""
        if self.broker.is_paused or not self.overtaken_trainers:
            return
        overtaken = self.overtaken_trainers[which % len(self.overtaken_trainers)]
        if overtaken.ledger.is_closed:
            return
        try:
            overtaken.run_once()
        except Superseded:
            self.overtaken_trainers.remove(overtaken)

    # Workers

    def start_worker(self) -> None:
        if self.broker.is_paused or len(self.workers) > max_workers:
            return
        self.num_workers_started += 1
        self.workers.append(
            SimulatedWorker(
                self.broker,
                self.topics,
                f"worker-{self.num_workers_started}",
                capacity=self.plan.num_slots,
                has_late_rewards=self.plan.late_rewards,
                reward_function=reward_function,
                limits=TaskLimits(
                    num_sample_partitions=num_partitions, num_replicas=self.plan.groups.num_replicas
                ),
                clock=lambda: self.now,
                num_task_partitions=max_workers,
                max_scoring=max_scoring,
                reload=self.plan.reload,
            )
        )

    def worker(self, which: int) -> SimulatedWorker | None:
        return self.workers[which % len(self.workers)] if self.workers else None

    def kill_worker(self, which: int, *, arrives: bool) -> None:
        """Its records on their way arrive later, or never."""
        worker = self.worker(which)
        if worker is None:
            return
        self.workers.remove(worker)
        if arrives:
            self._bury(worker.producer)
        else:
            worker.producer.lose()

    def dismiss_worker(self, which: int) -> None:
        worker = self.worker(which)
        if worker is not None and not self.broker.is_paused:
            worker.leave()
            self._remove_leavers()

    def beat(self, which: int) -> None:
        worker = self.worker(which)
        if worker is not None and not self.broker.is_paused:
            worker.beat()
            self._remove_leavers()

    # The log

    def deliver(self, which: int) -> None:
        """Something that was on its way arrives: from the living or from the dead."""
        producers = [worker.producer for worker in self.workers] + self.dead_producers
        if self.dispatcher_producer is not None:
            producers.append(self.dispatcher_producer)
        busy = [producer for producer in producers if producer.num_on_their_way]
        if busy:
            busy[which % len(busy)].deliver(which)

    def send_sample_again(self, which: int) -> None:
        """One of the newest samples arrives once more."""
        if not self.broker.is_paused:
            self._send_again(self._records(self.topics.samples, num_partitions), which)

    def send_task_again(self, which: int) -> None:
        """Only while its dispatcher is in office: a resend does not outlive its sender's fence."""
        if self.broker.is_paused or self.dispatcher is None:
            return
        mine = [
            record
            for record in self._records(self.topics.tasks, max_workers)
            if any(task.epoch == self.dispatcher.epoch for task in tasks_in(decode(record.value or b"")))
        ]
        self._send_again(mine, which)

    def send_garbage(self, which: int) -> None:
        if not self.broker.is_paused:
            self.hand.send(self.topics.samples, which % num_partitions, b"\xc3\x01 no sample")

    def pause(self) -> None:
        self.broker.pause()

    def resume(self) -> None:
        if self.broker.is_paused:
            self.broker.resume()

    # The end

    def finish(self) -> None:
        """Nothing bad happens any more: the run must come to its end, and nothing is found off in it."""
        self.come_to_the_end()
        self.auditor.conclude(WeightsStore(self.trainer_settings.weights_uri))

    def come_to_the_end(self) -> None:
        """Nothing bad happens any more: the run must come to its end."""
        self.resume()
        self.broker.cut = None
        for worker in self.workers:
            worker.producer.is_slow = False
        if self.dispatcher_producer is not None:
            self.dispatcher_producer.is_slow = False
        for _ in range(calm_rounds):
            self.calm_round()
            if self._is_over:
                break
        assert self._is_over, self._where_it_stands()

    def score(self, replica: Replica) -> float | None:
        """The reward in calm times: every group has signal, but for the poisoned prompt, which always fails.

        More pass in every other group, so that no bounds on the pass rate refuse all of them. Any two replicas differ a
        little: of a group with redundant ones the same two of equal parity may always be the first to end.
        """
        if replica.task.prompt.prompt_id == str(self.plan.poisoned_prompt):
            return None
        if self.scorer is not None:
            return self.scorer.scored(replica)
        is_passed = (replica.task.group_id + replica.number) % 2
        apart = 0.001 * replica.number if self.plan.redundant_replicas else 0.0
        return is_passed + apart if self.rewards_vary else self.same_reward

    @property
    def _is_over(self) -> bool:
        closed = self.auditor.end_offsets is not None
        return (
            closed
            and self.dispatcher is not None
            and self.dispatcher.state.is_run_closed
            and not self.workers
        )

    def calm_round(self) -> None:
        """Everybody does what there is to do, and a moment passes."""
        if self.trainer is None:
            self.start_trainer()
        self.producers_round()
        self.turn_trainer()
        self.look()

    def producers_round(self) -> None:
        """Workers and dispatcher do what there is to do, and a moment passes."""
        self.now += round_seconds
        if self.scorer is not None:
            self.scorer.write_some()
        if self.dispatcher is None:
            self.start_dispatcher()
        if not self.workers and not self.auditor.end_offsets:
            self.start_worker()
        for worker in list(self.workers):
            worker.producer.flush(0.0)
            worker.read()
            worker.load()
            for _ in range(worker.num_running):
                worker.finish(0, self.score)
            worker.beat()
        self._remove_leavers()
        assert self.dispatcher_producer is not None
        self.dispatcher_producer.flush(0.0)
        self.turn_dispatcher()

    def _where_it_stands(self) -> str:
        assert self.dispatcher is not None
        state = self.dispatcher.state
        return (
            f"no end in sight: version {state.ledger.version} of {self.plan.num_steps}, "
            f"closed {sorted(self.auditor.ledger.closed_groups)}, open tasks "
            f"{[(task.task_id, task.task.group_id, task.worker_id) for task in state.credits.all()]}, "
            f"open groups {state.groups.num_open}, next group {state.groups.next_group_id}, "
            f"workers {[(worker.worker_id, worker.session.state.value) for worker in self.workers]}, "
            f"ledger closed {self.auditor.end_offsets is not None}"
        )

    def _remove_leavers(self) -> None:
        self.workers = [worker for worker in self.workers if not worker.has_left]

    def _bury(self, producer: SlowProducer | None) -> None:
        if producer is not None and producer.num_on_their_way:
            self.dead_producers.append(producer)

    def _send_again(self, records: list[Record], which: int) -> None:
        newest = records[-4:]
        if newest:
            record = newest[which % len(newest)]
            self.hand.send(record.topic, record.partition, record.value, headers=record.headers)

    def _records(self, topic: str, count: int) -> list[Record]:
        places = [TopicPartition(topic, number) for number in range(count)]
        with self.broker.consumer(client_id="hand") as consumer:
            consumer.assign(dict.fromkeys(places, 0))
            return sorted(consumer.poll(0.0), key=lambda record: (record.offset, record.partition))

    @property
    def _dispatcher_settings(self) -> DispatcherSettings:
        return self.plan.dispatcher_settings(self.topics, self.home)

    @property
    def trainer_settings(self) -> TrainerSettings:
        manifest_json = None if self.manifest_json_of is None else self.manifest_json_of(self)
        return self.plan.trainer_settings(self.topics, self.home, manifest_json)
