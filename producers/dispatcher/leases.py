"""Leases and grants against a live broker: contact, expiry, reconciliation, partitions for new workers.

Before anything is declared lost, workers and samples are read up to end offsets fetched afterwards.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from producers.dispatcher.workers import missing_tasks
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import BrokerError
from rollog.kernel.logs import get_logger
from schemas import Grant, Revoke

if TYPE_CHECKING:
    from collections.abc import Callable

    from producers.dispatcher.credits import OpenTask
    from producers.dispatcher.reader import Intake
    from producers.dispatcher.sender import Outbox
    from producers.dispatcher.settings import DispatcherSettings
    from producers.dispatcher.state import DispatcherState
    from producers.dispatcher.workers import KnownWorker
    from rollog.kernel.broker.ports import Consumer
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.metrics import Metrics

log = get_logger("dispatcher")

poll_seconds = 0.02
contact_seconds = 0.75
lost_contact_seconds = 2.0


class LeaseKeeper:
    """Gives grants to workers that are heard and takes back those of workers that are not."""

    def __init__(
        self,
        settings: DispatcherSettings,
        state: DispatcherState,
        topics: RunTopics,
        *,
        consumer: Consumer,
        intake: Intake,
        outbox: Outbox,
        metrics: Metrics,
        epoch: int,
        clock: Callable[[], float],
    ) -> None:
        self._dispatch = settings.dispatch
        self._max_workers = settings.broker.max_workers
        self._state = state
        self._topics = topics
        self._consumer = consumer
        self._intake = intake
        self._outbox = outbox
        self._metrics = metrics
        self._epoch = epoch
        self._clock = clock
        self._last_contact = clock()
        self._grants_given = 0
        self._no_partition_for: set[str] = set()
        self._places = [TopicPartition(topics.workers, 0)] + [
            TopicPartition(name, number)
            for name in (topics.samples, topics.evaluations)
            for number in range(settings.broker.samples_partitions)
        ]

    def contact(self, now: float) -> None:
        """The broker answered; after a gap, silence of workers proves nothing and leases begin anew."""
        if now - self._last_contact > lost_contact_seconds:
            self._state.workers.restart_leases(now)
        self._last_contact = now

    def keep_contact(self, now: float) -> None:
        """Ask the broker for a sign of life when nothing has been read for a while."""
        if now - self._last_contact >= contact_seconds and self._ends() is not None:
            self.contact(self._clock())

    def end_leases(self, now: float) -> None:
        """Take back the grants of workers that left or fell silent, with everything they still owe."""
        departed, self._state.departed = self._state.departed, []
        for worker_id in departed:
            self._let_go(worker_id, "left")
        if now - self._last_contact > contact_seconds or not self._state.workers.silent(now):
            return
        if not self._read_on():
            return
        for worker in self._state.workers.silent(now):
            if now - worker.last_heard <= self._dispatch.lease_seconds:
                continue  # heard while another one's samples were read
            worker.is_expired = True
            self._metrics.dispatcher_leases_expired.inc()
            log.warning("lease expired", worker=worker.worker_id)
            self._let_go(worker.worker_id, "lease expired")

    def reconcile(self, now: float) -> None:
        """Declare tasks lost that their worker has read but neither names in heartbeats nor ends."""
        heard, self._state.new_heartbeats = self._state.new_heartbeats, set()
        for worker_id in heard:
            worker = self._state.workers.workers.get(worker_id)
            if worker is None:
                continue
            missing = missing_tasks(
                worker,
                self._state.credits,
                limit=self._dispatch.missing_heartbeats,
                now=now,
                grace=self._dispatch.lease_seconds,
            )
            if missing and self._read_on():
                for open_task in map(self._state.credits.get, missing):
                    if open_task is not None:
                        self.lose(open_task)
                if worker.status is not None and not worker.status.open_tasks:
                    # A record that voids what follows it may stand in its partition: a new grant begins behind it.
                    self._let_go(worker_id, "takes none of its tasks")

    def give_grants(self) -> None:
        """Give every worker that waits for one a partition of its own."""
        waiting = self._state.workers.without_grant()
        if not waiting:
            return
        partitions = self._state.workers.free_partitions()
        for worker in waiting[len(partitions) :]:
            self._complain_about_partitions(worker)
        places = [TopicPartition(self._topics.tasks, number) for number in partitions[: len(waiting)]]
        ends = self._consumer.end_offsets(places) if places else {}
        for worker, place in zip(waiting, places, strict=False):
            self._grants_given += 1
            self.give(worker.worker_id, f"{self._epoch}.{self._grants_given}", place.partition, ends[place])
            log.info("grant given", worker=worker.worker_id, partition=place.partition, start=ends[place])

    def give(self, worker_id: str, grant_id: str, partition: int, start_offset: int) -> None:
        """Write a grant under this epoch: a new one, or a live one repeated."""
        grant = Grant(
            grant_id=grant_id,
            epoch=self._epoch,
            worker_id=worker_id,
            partition=partition,
            start_offset=start_offset,
        )
        self._outbox.control(grant)
        self._state.workers.granted(grant, self._clock())

    def lose(self, open_task: OpenTask) -> None:
        """Declare a task lost, in the log."""
        for sample in self._state.lose(open_task):
            self._outbox.lost(sample)
        log.info("task lost", task=open_task.task_id, worker=open_task.worker_id)

    def lose_tasks_without_grant(self) -> None:
        """Declare tasks lost whose grant is not live: nobody will end them (an earlier dispatcher died between)."""
        live = {
            worker.grant.grant_id
            for worker in self._state.workers.workers.values()
            if worker.grant is not None
        }
        for open_task in self._state.credits.all():
            if open_task.task.grant_id not in live:
                self.lose(open_task)

    def _let_go(self, worker_id: str, reason: str) -> None:
        worker = self._state.workers.workers.get(worker_id)
        if worker is None:
            return
        if not self._read_on():
            self._state.departed.append(worker_id)
            return
        for open_task in self._state.credits.of_worker(worker_id):
            self.lose(open_task)
        if worker.grant is not None:
            revoke = Revoke(
                grant_id=worker.grant.grant_id, epoch=self._epoch, worker_id=worker_id, reason=reason
            )
            self._outbox.control(revoke)
            self._state.on_control(revoke, self._clock())
        if not worker.is_expired:
            self._state.workers.left(worker_id)

    def _ends(self) -> dict[TopicPartition, int] | None:
        """Ends of what workers write, fetched now; None while the broker does not answer."""
        try:
            return self._consumer.end_offsets(self._places)
        except BrokerError as error:
            log.warning("no contact with the broker", error=str(error))
            return None

    def _read_on(self) -> bool:
        """Take in what workers wrote up to ends fetched now; False where that cannot be done at present."""
        ends = self._ends()
        deadline = time.monotonic() + lost_contact_seconds
        while ends is not None and any(self._consumer.position(place) < end for place, end in ends.items()):
            for record in self._consumer.poll(poll_seconds):
                self._intake.take_in(record, self._clock())
            if time.monotonic() > deadline:
                return False
        return ends is not None

    def _complain_about_partitions(self, worker: KnownWorker) -> None:
        if worker.worker_id in self._no_partition_for:
            return
        self._no_partition_for.add(worker.worker_id)
        log.warning(
            "no tasks partition is left for another worker; start runs with a higher broker.max_workers",
            worker=worker.worker_id,
            max_workers=self._max_workers,
        )
