"""Leases and grants against a live broker: contact, expiry, reconciliation, partitions for new workers.

Before anything is declared lost, workers and samples are read up to end offsets fetched afterwards: a sample that is in
the log already must not be declared lost.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from producers.dispatcher.workers import is_astray, missing_tasks
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import BrokerError, NotAuthorized
from rollog.kernel.logs import get_logger
from schemas import Grant, Revoke

if TYPE_CHECKING:
    from collections.abc import Callable

    from producers.dispatcher.credits import OpenTask
    from producers.dispatcher.reader import LogReader
    from producers.dispatcher.sender import TaskSender
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
    """Gives grants to workers that send heartbeats and takes back those of workers that do not.

    | a worker is  | reached by                                         | its open tasks                          |
    | ---          | ---                                                | ---                                     |
    | waiting      | a heartbeat without a grant                        | it has none                             |
    | granted      | a free tasks partition; Grant is written           | run                                     |
    | expired      | no heartbeat for `lease_seconds`; Revoke is written | are lost; a heartbeat makes it waiting   |
    | released     | its tombstone; Revoke is written                   | are lost, but for samples that are read |

    Example: leases last 3 s. Worker w holds task 4.7; its last heartbeat was read at 10.0 s. At 13.1 s its lease has
    expired. First workers and samples are read to their ends: a heartbeat there renews the lease, the sample of 4.7
    there ends the task. Else 4.7 is declared lost and the grant revoked. Had the broker not answered since 10.9 s,
    nothing would happen at 13.1 s: when it answers again, at 20.0 s, every lease starts again and ends at 23.0 s.
    """

    def __init__(
        self,
        settings: DispatcherSettings,
        state: DispatcherState,
        topics: RunTopics,
        *,
        consumer: Consumer,
        reader: LogReader,
        sender: TaskSender,
        metrics: Metrics,
        epoch: int,
        clock: Callable[[], float],
    ) -> None:
        self._dispatch = settings.dispatch
        self._max_workers = settings.broker.max_workers
        self._state = state
        self._topics = topics
        self._consumer = consumer
        self._reader = reader
        self._sender = sender
        self._metrics = metrics
        self._epoch = epoch
        self._clock = clock
        self._last_contact = clock()
        self._grants_given = 0
        self._no_partition_for: set[str] = set()
        self._written_by_workers = [TopicPartition(topics.workers, 0)] + [
            TopicPartition(name, partition)
            for name in (topics.samples, topics.evaluations)
            for partition in range(settings.broker.samples_partitions)
        ]

    def seconds_without_contact(self, now: float) -> float:
        """How long the broker has not answered."""
        return max(0.0, now - self._last_contact)

    def contact(self, now: float) -> None:
        """Note that the broker answered; after a gap of `lost_contact_seconds` every lease starts again."""
        if now - self._last_contact > lost_contact_seconds:
            # Heartbeats may have been written that could not be read: that none was read proves nothing.
            self._state.workers.restart_leases(now)
        self._last_contact = now

    def keep_contact(self, now: float) -> None:
        """Fetch end offsets when nothing was read for `contact_seconds`: an idle log is no lost contact."""
        if now - self._last_contact >= contact_seconds and self._ends() is not None:
            self.contact(self._clock())

    def end_leases(self, now: float) -> None:
        """Take back the grants of workers with a tombstone or an expired lease, and declare their tasks lost."""
        tombstoned, self._state.tombstoned = self._state.tombstoned, []
        for worker_id in tombstoned:
            self._release(worker_id, "left")
        if now - self._last_contact > contact_seconds or not self._state.workers.with_expired_lease(now):
            return
        # What was written but not read yet may renew a lease or end a task.
        if not self._read_on():
            return
        for worker in self._state.workers.with_expired_lease(now):
            if now - worker.last_heartbeat <= self._dispatch.lease_seconds:
                continue  # its heartbeat was read while another worker's tasks were declared lost
            worker.is_expired = True
            self._metrics.dispatcher_leases_expired.inc()
            log.warning("lease expired", worker=worker.worker_id)
            self._release(worker.worker_id, "lease expired")

    def reconcile(self, now: float) -> None:
        """Declare tasks lost that their worker has read but neither names in heartbeats nor ends.

        A worker that goes by another grant than its own loses it, and gets a new one.
        """
        updated, self._state.new_heartbeats = self._state.new_heartbeats, set()
        for worker_id in updated:
            worker = self._state.workers.workers.get(worker_id)
            if worker is None:
                continue
            limit, grace = self._dispatch.missing_heartbeats, self._dispatch.lease_seconds
            if is_astray(worker, limit=limit, now=now, grace=grace):
                # It takes none of its tasks: a new grant brings it back.
                log.warning("worker goes by another grant", worker=worker_id)
                self._release(worker_id, "goes by another grant")
                continue
            missing = missing_tasks(worker, self._state.credits, limit=limit, now=now, grace=grace)
            if missing and self._read_on():
                for open_task in map(self._state.credits.get, missing):
                    if open_task is not None:
                        self.lose(open_task)
                if worker.status is not None and not worker.status.open_tasks:
                    # A record in its partition may void all that follows; only a new grant begins behind it.
                    self._release(worker_id, "takes none of its tasks")

    def give_grants(self) -> None:
        """Give every worker that waits for one a partition of its own."""
        waiting = self._state.workers.without_grant()
        if not waiting:
            return
        partitions = self._state.workers.free_partitions()
        for worker in waiting[len(partitions) :]:
            self._complain_about_partitions(worker)
        assigned = [TopicPartition(self._topics.tasks, partition) for partition in partitions[: len(waiting)]]
        ends = self._consumer.end_offsets(assigned) if assigned else {}
        for worker, partition in zip(waiting, assigned, strict=False):
            self._grants_given += 1
            self.give(
                worker.worker_id, f"{self._epoch}.{self._grants_given}", partition.partition, ends[partition]
            )
            log.info(
                "grant given", worker=worker.worker_id, partition=partition.partition, start=ends[partition]
            )

    def give(self, worker_id: str, grant_id: str, partition: int, start_offset: int) -> None:
        """Write a grant under this epoch: a new one, or a live one repeated."""
        grant = Grant(
            grant_id=grant_id,
            epoch=self._epoch,
            worker_id=worker_id,
            partition=partition,
            start_offset=start_offset,
        )
        self._sender.control(grant)
        self._state.on_control(grant, self._clock())

    def lose(self, open_task: OpenTask) -> None:
        """Declare a task lost, in the log."""
        for sample in self._state.lose(open_task):
            self._sender.lost(sample)
        log.info("task lost", task=open_task.task_id, worker=open_task.worker_id)

    def lose_all(self) -> None:
        """Declare every open task lost whose sample is not in the log; later, where the broker does not answer."""
        if self._read_on():
            for open_task in self._state.credits.all():
                self.lose(open_task)

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

    def _release(self, worker_id: str, reason: str) -> None:
        worker = self._state.workers.workers.get(worker_id)
        if worker is None:
            return
        if not self._read_on():
            self._state.tombstoned.append(worker_id)  # again at the next turn, when the broker answers
            return
        for open_task in self._state.credits.of_worker(worker_id):
            self.lose(open_task)
        if worker.grant is not None:
            revoke = Revoke(
                grant_id=worker.grant.grant_id, epoch=self._epoch, worker_id=worker_id, reason=reason
            )
            self._sender.control(revoke)
            self._state.on_control(revoke, self._clock())
        # An expired worker stays known: its next heartbeat brings it back.
        if not worker.is_expired:
            self._state.workers.release(worker_id)

    def _ends(self) -> dict[TopicPartition, int] | None:
        """Ends of what workers write, fetched now; None while the broker does not answer."""
        try:
            return self._consumer.end_offsets(self._written_by_workers)
        except NotAuthorized:
            raise
        except BrokerError as error:
            log.warning("no contact with the broker", error=str(error))
            return None

    def _read_on(self) -> bool:
        """Take in what workers wrote up to ends fetched now; False where that cannot be done at present."""
        ends = self._ends()
        deadline = time.monotonic() + lost_contact_seconds
        while ends is not None and any(
            self._consumer.position(partition) < end for partition, end in ends.items()
        ):
            for record in self._consumer.poll(poll_seconds):
                self._reader.take_in(record, self._clock())
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
