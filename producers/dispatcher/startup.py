"""How a dispatcher takes a run over: everything that happens before its first turn.

0. As a reader alone: read what a dispatcher can be refused for. One that is at work goes on if it comes to that. A
   snapshot of an earlier dispatcher, if there is one, saves reading what is older (`producers.dispatcher.snapshot`).
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
from producers.dispatcher.issuing import Issuer
from producers.dispatcher.leases import LeaseKeeper
from producers.dispatcher.rebuilding import Rebuilding
from producers.dispatcher.sender import TaskSender
from producers.dispatcher.snapshot import folded_log
from producers.dispatcher.snapshot_writer import SnapshotWriter
from producers.dispatcher.turn_positions import TurnPositions
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.logs import get_logger
from rollog.kernel.snapshot_file import SnapshotFile
from rollog.rules.epochs import taken_epoch
from schemas import DispatcherEpoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from producers.dispatcher.reader import LogReader
    from producers.dispatcher.settings import DispatcherSettings
    from producers.dispatcher.snapshot import FoldedLog
    from producers.dispatcher.state import DispatcherState
    from rollog.kernel.broker.ports import Broker, Consumer, Producer
    from rollog.kernel.metrics import Metrics
    from schemas import Grant, Prompt

log = get_logger("dispatcher")

fence_seconds = 60.0


def take_epoch(broker: Broker, topics: RunTopics, dispatcher_id: str) -> int:
    """Fence earlier dispatchers' transactions, then commit the next epoch to control. Raises as `taken_epoch`."""
    own = DispatcherEpoch(epoch=0, dispatcher_id=dispatcher_id)
    with broker.transactional_producer(
        topics.dispatcher_transactional_id, topics=[topics.control]
    ) as producer:
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
            folded = self.begin(consumer)
            self.rebuilding(consumer).check(folded, self.clock())
            dispatcher = self.complete(producer, consumer, folded)
            opened.pop_all()  # from here on the dispatcher closes them
        return dispatcher

    def begin(self, consumer: Consumer) -> FoldedLog:
        """Where reading begins: at the snapshot of an earlier dispatcher, or at the beginning of the log."""
        return folded_log(self.settings, len(self.held_out), consumer, self._snapshot_file)

    def rebuilding(self, consumer: Consumer) -> Rebuilding:
        """How this dispatcher reads the log."""
        return Rebuilding(settings=self.settings, num_held_out=len(self.held_out), consumer=consumer)

    def complete(self, producer: Producer, consumer: Consumer, folded: FoldedLog) -> Dispatcher:
        """Take the run over with clients that are open, on from `folded`; the dispatcher closes them."""
        settings, topics, rebuilding = self.settings, self._topics, self.rebuilding(consumer)
        epoch = take_epoch(self.broker, topics, self.dispatcher_id)
        sender = TaskSender(
            producer,
            topics,
            epoch,
            settings.broker.samples_partitions,
            max_record_bytes=settings.broker.max_record_bytes,
        )
        # Fences before ends: a task of an older epoch that is appended later lies behind a fence and is void.
        fences = fence_partitions(sender, topics, settings.broker.max_workers)
        ends = rebuilding.ends() | fences
        state = folded.state
        reader = rebuilding.rebuild(
            folded, ends, epoch=epoch, now=self.clock(), sender=sender, metrics=self.metrics
        )
        state.check_epoch(epoch)
        parts = self._parts(producer, consumer, state, reader=reader, sender=sender, epoch=epoch, ends=ends)
        grants = state.workers.grants
        _resume_grants(parts.leases, grants)
        read_once = {topics.tasks, topics.dead_letters}
        consumer.assign({place: end for place, end in ends.items() if place.topic not in read_once})
        state.cancel_tasks_of_closed_groups()
        self.metrics.dispatcher_epoch.set(epoch)
        log.info("dispatcher ready", epoch=epoch, version=state.ledger.version, grants=len(grants))
        return Dispatcher(settings, self.metrics, parts, clock=self.clock)

    @property
    def _topics(self) -> RunTopics:
        return RunTopics(self.settings.prefix, self.settings.run)

    @property
    def _snapshot_file(self) -> SnapshotFile:
        return SnapshotFile(self.settings.snapshot, "dispatcher", self.settings.snapshot_every_seconds)

    def _parts(
        self,
        producer: Producer,
        consumer: Consumer,
        state: DispatcherState,
        *,
        reader: LogReader,
        sender: TaskSender,
        epoch: int,
        ends: Mapping[TopicPartition, int],
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
            turns=TurnPositions(
                consumer,
                self._topics.turns,
                self.settings.broker.samples_partitions if self.settings.dispatch.durable_turns else 0,
            ),
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
            snapshots=SnapshotWriter(
                self._snapshot_file,
                self.settings,
                state,
                consumer=consumer,
                reader=reader,
                sender=sender,
                issuer=issuer,
                num_held_out=len(self.held_out),
                ends=ends,
            ),
        )


def _resume_grants(leases: LeaseKeeper, grants: Iterable[Grant]) -> None:
    """Repeat live grants, so that workers take tasks of the new epoch; what no live grant covers is lost."""
    for grant in grants:
        leases.give(grant.worker_id, grant.grant_id, grant.partition, grant.start_offset)
    leases.lose_tasks_without_grant()
