"""How a dispatcher takes a run over: everything that happens before its first turn.

0. As a reader alone: read what a dispatcher can be refused for. One that is at work goes on if it comes to that.
1. Commit the next epoch to `control`. Whatever an older dispatcher still writes there is void from now on.
2. Write a fence of that epoch to every tasks partition. Tasks of older epochs behind it are void.
3. Fetch the end of every topic, then read the log up to these ends and fold it into the state.
4. Repeat the grants that are live under the new epoch, and declare tasks lost whose grant is not live.
5. Return a whole dispatcher, which reads on from the ends of 3.

On crash at any point nothing is lost: the next dispatcher takes a higher epoch and begins again. The epoch comes
first, because only after it no other dispatcher can change what is read in 3.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from producers.dispatcher.dispatcher import Dispatcher, DispatcherParts
from producers.dispatcher.history import History, rebuild
from producers.dispatcher.issuing import Issuer
from producers.dispatcher.leases import LeaseKeeper
from producers.dispatcher.reader import LogReader
from producers.dispatcher.sender import TaskSender
from producers.dispatcher.state import DispatcherState
from producers.dispatcher.tasks import is_issued_by_a_dispatcher
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.logs import get_logger
from rollog.kernel.metrics import Metrics
from rollog.rules.epochs import taken_epoch
from rollog.rules.headers import SampleLimits
from schemas import DispatcherEpoch, RolloutTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from producers.dispatcher.reader import SetsAside
    from producers.dispatcher.settings import DispatcherSettings
    from rollog.kernel.broker.ports import Broker, Consumer, Producer, Record
    from schemas import Grant, Prompt

log = get_logger("dispatcher")

fence_seconds = 60.0


def take_epoch(broker: Broker, topics: RunTopics, dispatcher_id: str) -> int:
    """Fence earlier dispatchers' transactions, then commit the next epoch to control. Raises as `taken_epoch`."""
    own = DispatcherEpoch(epoch=0, dispatcher_id=dispatcher_id)
    with broker.transactional_producer(topics.dispatcher_transactional_id) as producer:
        return taken_epoch(broker, topics.control, producer, own).epoch


def fence_partitions(sender: TaskSender, topics: RunTopics, num_partitions: int) -> dict[TopicPartition, int]:
    """Append a fence to every tasks partition; returns the offset after each."""
    fences = {partition: sender.fence(partition) for partition in range(num_partitions)}
    return {
        TopicPartition(topics.tasks, partition): fence.offset(fence_seconds) + 1
        for partition, fence in fences.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """Who takes a run over, and the prompts it hands out."""

    settings: DispatcherSettings
    broker: Broker
    metrics: Metrics
    dispatcher_id: str
    prompts: Sequence[Prompt]
    held_out: Sequence[Prompt]
    clock: Callable[[], float] = time.monotonic

    def start(self) -> Dispatcher:
        """Connect and take the run over.

        Raises, with an earlier dispatcher at work as before: LedgerError, TopicMismatch or DecodeError where the run
        cannot go on. Raises Superseded or Expired where another one takes over meanwhile.
        """
        with ExitStack() as opened:
            producer = opened.enter_context(self.broker.producer(client_id="dispatcher"))
            consumer = opened.enter_context(self.broker.consumer(client_id="dispatcher"))
            self.check(consumer)
            dispatcher = self.complete(producer, consumer)
            opened.pop_all()  # from here on the dispatcher closes them
        return dispatcher

    def check(self, consumer: Consumer) -> None:
        """Fold, as a reader alone, all that a dispatcher can be refused for: samples and tasks refuse nobody."""
        ends = consumer.end_offsets(self._partitions())
        history = self._read_history(consumer, ends, epoch=0)
        now = self.clock()
        state = DispatcherState(self.settings, len(self.held_out))
        rebuild(state, history, now)
        reader = self._reader(state, _LeftThere(), history, Metrics())
        evaluations = {place: end for place, end in ends.items() if place.topic == self._topics.evaluations}
        for record in read_until(consumer, consumer.beginning_offsets(evaluations), evaluations):
            reader.take_in(record, now)

    def complete(self, producer: Producer, consumer: Consumer) -> Dispatcher:
        """Take the run over with clients that are open; the dispatcher closes them."""
        settings, topics = self.settings, self._topics
        epoch = take_epoch(self.broker, topics, self.dispatcher_id)
        sender = TaskSender(
            producer,
            topics,
            epoch,
            settings.broker.samples_partitions,
            max_record_bytes=settings.broker.max_record_bytes,
        )
        partitions = self._partitions()
        # Fences before ends: a task of an older epoch that is appended later lies behind a fence and is void.
        fences = fence_partitions(sender, topics, settings.broker.max_workers)
        ends = consumer.end_offsets(partitions) | fences
        now = self.clock()
        history = self._read_history(consumer, ends, epoch)
        state = DispatcherState(settings, len(self.held_out))
        grants = rebuild(state, history, now)
        state.check_epoch(epoch)
        reader = self._reader(state, sender, history, self.metrics)
        self._read_results(consumer, reader, ends, now)
        parts = self._parts(producer, consumer, state, reader=reader, sender=sender, epoch=epoch)
        _resume_grants(parts.leases, grants.values())
        consumer.assign(
            {partition: ends[partition] for partition in partitions if partition.topic != topics.dead_letters}
        )
        state.cancel_tasks_of_closed_groups()
        self.metrics.dispatcher_epoch.set(epoch)
        log.info("dispatcher ready", epoch=epoch, version=state.ledger.version, grants=len(grants))
        return Dispatcher(settings, self.metrics, parts, clock=self.clock)

    @property
    def _topics(self) -> RunTopics:
        return RunTopics(self.settings.prefix, self.settings.run)

    @property
    def _result_topics(self) -> tuple[str, str]:
        return (self._topics.samples, self._topics.evaluations)

    def _partitions(self) -> list[TopicPartition]:
        """Every partition that is read, but those of `tasks`: these end at their fences."""
        topics = self._topics
        singles = (topics.control, topics.steps, topics.workers, topics.dead_letters)
        return [TopicPartition(name, 0) for name in singles] + [
            TopicPartition(name, partition)
            for name in self._result_topics
            for partition in range(self.settings.broker.samples_partitions)
        ]

    def _read_history(self, consumer: Consumer, ends: Mapping[TopicPartition, int], epoch: int) -> History:
        """Everything but samples and evaluations: these are folded one by one, and need tasks and ledger before."""
        read = {
            partition: end for partition, end in ends.items() if partition.topic not in self._result_topics
        }
        history = History(epoch, self._is_issued)
        for record in read_until(consumer, consumer.beginning_offsets(read), read):
            history.add(record, self._topics)
        return history

    def _is_issued(self, task: RolloutTask) -> bool:
        settings = self.settings
        return is_issued_by_a_dispatcher(
            task, settings.run_config.seed, num_replicas=settings.groups.num_replicas
        )

    def _reader(
        self, state: DispatcherState, sender: SetsAside, history: History, metrics: Metrics
    ) -> LogReader:
        settings = self.settings
        reader = LogReader(
            state,
            self._topics,
            sender=sender,
            metrics=metrics,
            limits=SampleLimits(
                num_partitions=settings.broker.samples_partitions,
                num_replicas=settings.groups.num_replicas,
                temperature=settings.sampling.temperature,
            ),
            dead_lettered=history.dead_lettered,
            max_dead_letters_in_a_row=settings.broker.max_dead_letters_in_a_row,
        )
        reader.set_aside_unreadable(history.control, history.workers.values())
        return reader

    def _read_results(
        self, consumer: Consumer, reader: LogReader, ends: Mapping[TopicPartition, int], now: float
    ) -> None:
        results = {
            partition: end for partition, end in ends.items() if partition.topic in self._result_topics
        }
        for record in read_until(consumer, consumer.beginning_offsets(results), results):
            reader.take_in(record, now)
        reader.begin_at(ends)

    def _parts(
        self,
        producer: Producer,
        consumer: Consumer,
        state: DispatcherState,
        *,
        reader: LogReader,
        sender: TaskSender,
        epoch: int,
    ) -> DispatcherParts:
        leases = LeaseKeeper(
            self.settings,
            state,
            self._topics,
            consumer=consumer,
            reader=reader,
            sender=sender,
            metrics=self.metrics,
            epoch=epoch,
            clock=self.clock,
        )
        issuer = Issuer(
            self.settings,
            state,
            reader=reader,
            sender=sender,
            metrics=self.metrics,
            epoch=epoch,
            prompts=self.prompts,
            held_out=self.held_out,
        )
        return DispatcherParts(
            epoch=epoch,
            dispatcher_id=self.dispatcher_id,
            state=state,
            producer=producer,
            consumer=consumer,
            reader=reader,
            sender=sender,
            leases=leases,
            issuer=issuer,
        )


class _LeftThere:
    """In the place of a sender, for who only reads: what cannot be read stays where it is."""

    def dead_letter(self, record: Record, reason: str) -> None:
        """Write nothing."""


def _resume_grants(leases: LeaseKeeper, grants: Iterable[Grant]) -> None:
    """Repeat live grants, so that workers take tasks of the new epoch; what no live grant covers is lost."""
    for grant in grants:
        leases.give(grant.worker_id, grant.grant_id, grant.partition, grant.start_offset)
    leases.lose_tasks_without_grant()
