"""The dispatcher: the one role that decides which rollout is made, by whom, and when it is taken back.

consumes   control, steps, samples, evaluations, workers (and tasks and dead-letters once, at its start)
produces   tasks, control, `lost` records on samples and evaluations, dead-letters
waits for  free slots at a worker that serves the version a task needs; room for another group
on crash   the next dispatcher takes a higher epoch, voids what was under way, and reads its state from the log

One thread, one loop; every decision is made by the pure parts it holds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from producers.dispatcher.issuing import Issuer
from producers.dispatcher.leases import LeaseKeeper
from producers.dispatcher.reader import Intake
from producers.dispatcher.sender import Outbox
from producers.dispatcher.startup import (
    History,
    check_epoch,
    fence_partitions,
    rebuild,
    take_epoch,
)
from producers.dispatcher.state import DispatcherState
from producers.dispatcher.tasks import is_issued_by_a_dispatcher
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.kernel.logs import get_logger
from rollog.rules.headers import SampleLimits
from schemas import DatasetEnd, RolloutTask, RunClosed, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from threading import Event

    from producers.dispatcher.settings import DispatcherSettings
    from rollog.kernel.broker.ports import Broker, Consumer, Producer
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.metrics import Metrics
    from schemas import Prompt

log = get_logger("dispatcher")

poll_seconds = 0.02
gather_seconds = 0.03
"""Pause between two looks: taking in many small batches costs more than their records."""


class Dispatcher:
    """Owns a run's tasks under one epoch."""

    def __init__(
        self,
        settings: DispatcherSettings,
        broker: Broker,
        topics: RunTopics,
        metrics: Metrics,
        *,
        dispatcher_id: str,
        prompts: Sequence[Prompt],
        held_out: Sequence[Prompt],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._topics = topics
        self._metrics = metrics
        self._dispatcher_id = dispatcher_id
        self._prompts = prompts
        self._held_out = held_out
        self._clock = clock
        self._stop_sent_at: float | None = None
        self.state = DispatcherState(settings, len(held_out))
        self.epoch = 0

    def run(self, stop: Event) -> None:
        """Take the run over and dispatch until it is closed or `stop` is set. Raises Superseded."""
        with (
            self._broker.producer(client_id="dispatcher") as producer,
            self._broker.consumer(client_id="dispatcher") as consumer,
        ):
            self.take_over(producer, consumer)
            while not stop.is_set() and not self.state.is_run_closed:
                self.run_once()
                stop.wait(gather_seconds)
            self._outbox.flush()
        log.info("dispatcher leaves", epoch=self.epoch, closed=self.state.is_run_closed)

    def take_over(self, producer: Producer, consumer: Consumer) -> None:
        """Become the run's dispatcher: epoch, fences, state from the log, live grants repeated."""
        self.epoch = take_epoch(self._broker, self._topics, self._dispatcher_id)
        num_partitions = self._settings.broker.samples_partitions
        self._consumer = consumer
        self._outbox = Outbox(producer, self._topics, self.epoch, num_partitions)
        places = self._places()
        fences = fence_partitions(self._outbox, self._topics, self._settings.broker.max_workers)
        ends = consumer.end_offsets(places) | fences
        now = self._clock()
        history = self._read_history(ends)
        grants = rebuild(self.state, history, now)
        check_epoch(self.state, self.epoch)
        self._intake = Intake(
            self.state,
            self._topics,
            outbox=self._outbox,
            metrics=self._metrics,
            limits=SampleLimits(
                num_partitions=num_partitions,
                num_replicas=self._settings.groups.num_replicas,
                temperature=self._settings.sampling.temperature,
            ),
            lettered=history.lettered,
            max_dead_letters_in_a_row=self._settings.broker.max_dead_letters_in_a_row,
        )
        self._intake.set_aside_unreadable(history.control, history.workers.values())
        results = {place: end for place, end in ends.items() if place.topic in self._result_topics}
        for record in read_until(consumer, consumer.beginning_offsets(results), results):
            self._intake.take_in(record, now)
        self._intake.begin_at(ends)
        self._build_parts(consumer)
        for grant in grants.values():
            self._leases.give(grant.worker_id, grant.grant_id, grant.partition, grant.start_offset)
        self._leases.lose_tasks_without_grant()
        consumer.assign({place: ends[place] for place in places if place.topic != self._topics.dead_letters})
        self.state.cancel_tasks_of_closed_groups()
        self._metrics.dispatcher_epoch.set(self.epoch)
        log.info("dispatcher ready", epoch=self.epoch, version=self.state.ledger.version, grants=len(grants))

    def run_once(self) -> None:
        """Take in what arrived, then do whatever it makes possible."""
        records = self._consumer.poll(poll_seconds)
        now = self._clock()
        if records:
            self._leases.contact(now)
        for record in records:
            self._intake.take_in(record, now)
        check_epoch(self.state, self.epoch)
        self._leases.keep_contact(now)
        self._leases.end_leases(now)
        self._leases.reconcile(now)
        self._issuer.cancel_surplus()
        if self.state.ledger.is_closed:
            self._outbox.control(RunClosed(epoch=self.epoch))
            self.state.is_run_closed = True
        elif self._stop_sent_at is not None or self.state.is_stopped:
            self._stop_workers(now)
        else:
            self._leases.give_grants()
            self._issue()
        self._report()

    def _issue(self) -> None:
        ledger = self.state.ledger
        if not ledger.has_genesis:
            return
        if self._issuer.at_dataset_end and self.state.last_group_id is None:
            self._end_dataset()
        if not self._is_trained():
            if self._issuer.issue_evaluations():
                self._issuer.issue_training()
            return
        self.state.cancel_training_tasks()
        if self._issuer.issue_evaluations(is_final=True) and self.state.evaluations.is_settled(
            ledger.version
        ):
            self._stop_workers(self._clock())

    def _is_trained(self) -> bool:
        """Whether the trainer takes no further step."""
        ledger = self.state.ledger
        if ledger.version >= ledger.num_steps(self._settings.run_config.num_steps):
            return True
        return self.state.last_group_id is not None and self.state.groups.all_closed()

    def _end_dataset(self) -> None:
        end = DatasetEnd(epoch=self.epoch, last_group_id=self.state.groups.next_group_id - 1)
        self._outbox.control(end)
        self.state.on_control(end, self._clock())
        log.info("dataset ended", last_group=end.last_group_id)

    def _stop_workers(self, now: float) -> None:
        """Send Stop once, wait for open tasks (for a bounded time), then say Stopped."""
        if self._stop_sent_at is None:
            self._stop_sent_at = now
            for worker in self.state.workers.workers.values():
                if worker.grant is not None:
                    self._outbox.stop(worker.grant)
            log.info("workers told to stop", open_tasks=len(self.state.credits))
        if self.state.is_stopped:
            return
        if now - self._stop_sent_at > self._settings.dispatch.stop_timeout_seconds:
            for open_task in self.state.credits.all():
                self._leases.lose(open_task)
        if len(self.state.credits) == 0:
            self._outbox.flush()
            stopped = Stopped(epoch=self.epoch)
            self._outbox.control(stopped)
            self.state.on_control(stopped, now)
            log.info("stopped", version=self.state.ledger.version)

    def _build_parts(self, consumer: Consumer) -> None:
        self._leases = LeaseKeeper(
            self._settings,
            self.state,
            self._topics,
            consumer=consumer,
            intake=self._intake,
            outbox=self._outbox,
            metrics=self._metrics,
            epoch=self.epoch,
            clock=self._clock,
        )
        self._issuer = Issuer(
            self._settings,
            self.state,
            intake=self._intake,
            outbox=self._outbox,
            metrics=self._metrics,
            epoch=self.epoch,
            prompts=self._prompts,
            held_out=self._held_out,
        )

    @property
    def _result_topics(self) -> tuple[str, str]:
        return (self._topics.samples, self._topics.evaluations)

    def _places(self) -> list[TopicPartition]:
        topics = self._topics
        singles = (topics.control, topics.steps, topics.workers, topics.dead_letters)
        return [TopicPartition(name, 0) for name in singles] + [
            TopicPartition(name, number)
            for name in self._result_topics
            for number in range(self._settings.broker.samples_partitions)
        ]

    def _read_history(self, ends: Mapping[TopicPartition, int]) -> History:
        """Everything but samples and evaluations, which are folded as they are read."""
        first = {place: end for place, end in ends.items() if place.topic not in self._result_topics}
        history = History(self.epoch, self._is_issued)
        for record in read_until(self._consumer, self._consumer.beginning_offsets(first), first):
            history.add(record, self._topics)
        return history

    def _is_issued(self, task: RolloutTask) -> bool:
        settings = self._settings
        return is_issued_by_a_dispatcher(
            task, settings.run_config.seed, num_replicas=settings.groups.num_replicas
        )

    def _report(self) -> None:
        workers = self.state.workers
        self._metrics.dispatcher_open_groups.set(self.state.groups.num_open)
        self._metrics.dispatcher_credits_free.set(
            sum(candidate.num_slots for candidate in workers.candidates(self.state.credits))
        )
        self._metrics.dispatcher_workers.set(workers.num_granted)
