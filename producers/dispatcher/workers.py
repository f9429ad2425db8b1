"""The workers a dispatcher knows: last heartbeats, grants, leases that expired.

Pure: the caller gives the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from producers.dispatcher.credits import Candidate
from schemas import WorkerState

if TYPE_CHECKING:
    from producers.dispatcher.credits import CreditLedger
    from schemas import Grant, WorkerStatus


@dataclass(slots=True, kw_only=True)
class KnownWorker:
    """One worker incarnation."""

    worker_id: str
    last_heartbeat: float
    status: WorkerStatus | None = None
    grant: Grant | None = None
    is_expired: bool = False
    num_astray: int = 0
    astray_since: float | None = None


@dataclass(slots=True)
class WorkerRegistry:
    """Leases, grants and partitions of the workers.

    A worker may hold tasks for its capacity, `prefetch_tasks` more, and one for each rollout that it is scoring, up to
    `max_scoring` of them.
    """

    lease_seconds: float
    num_partitions: int
    prefetch_tasks: int
    max_scoring: int
    workers: dict[str, KnownWorker] = field(default_factory=dict)

    def on_heartbeat(self, status: WorkerStatus, now: float) -> None:
        """Renew a worker's lease; one whose lease had expired is alive again and waits for a new grant."""
        worker = self.workers.get(status.worker_id)
        if worker is None:
            worker = self.workers[status.worker_id] = KnownWorker(
                worker_id=status.worker_id, last_heartbeat=now
            )
        worker.last_heartbeat = now
        worker.status = status
        worker.is_expired = False

    def release(self, worker_id: str) -> KnownWorker | None:
        """Remove a worker that leaves; returns it if it was known."""
        return self.workers.pop(worker_id, None)

    def granted(self, grant: Grant, now: float) -> None:
        """Note a grant that is in the log (the newest epoch of it wins)."""
        worker = self.workers.get(grant.worker_id)
        if worker is None:
            worker = self.workers[grant.worker_id] = KnownWorker(
                worker_id=grant.worker_id, last_heartbeat=now
            )
        if worker.grant is None or worker.grant.epoch <= grant.epoch:
            worker.grant = grant

    def revoked(self, grant_id: str) -> None:
        """Note that a grant was taken back: its worker has none."""
        for worker in self.workers.values():
            if worker.grant is not None and worker.grant.grant_id == grant_id:
                worker.grant = None

    def restart_leases(self, now: float) -> None:
        """Start every lease again, after a time without the broker: missing heartbeats prove nothing."""
        for worker in self.workers.values():
            worker.last_heartbeat = now

    def with_expired_lease(self, now: float) -> list[KnownWorker]:
        """Workers without a heartbeat for `lease_seconds`, as far as nobody has acted on it yet."""
        return [
            worker
            for worker in self.workers.values()
            if not worker.is_expired and now - worker.last_heartbeat > self.lease_seconds
        ]

    def without_grant(self) -> list[KnownWorker]:
        """Workers with a heartbeat that wait for a grant."""
        return [
            worker
            for worker in self.workers.values()
            if worker.grant is None
            and not worker.is_expired
            and worker.status is not None
            and worker.status.state is not WorkerState.LEAVING
        ]

    def free_partitions(self) -> list[int]:
        """The tasks partitions without a grant, in order; there are `broker.max_workers`."""
        taken = {worker.grant.partition for worker in self.workers.values() if worker.grant is not None}
        return [partition for partition in range(self.num_partitions) if partition not in taken]

    @property
    def grants(self) -> list[Grant]:
        """The live grants."""
        return [worker.grant for worker in self.workers.values() if worker.grant is not None]

    @property
    def num_granted(self) -> int:
        """Workers that hold a grant and whose lease runs."""
        return sum(worker.grant is not None and not worker.is_expired for worker in self.workers.values())

    def num_serving(self, version: int) -> int:
        """Workers that serve exactly this version, whatever they have to do."""
        return sum(
            status.state is WorkerState.SERVING and status.served_version == version
            for status in self._statuses()
        )

    def num_reloading_from_before(self, version: int) -> int:
        """Workers that are leaving an earlier version and may be on their way to this one."""
        return sum(
            status.state is WorkerState.RELOADING
            and status.served_version is not None
            and status.served_version < version
            for status in self._statuses()
        )

    def _statuses(self) -> list[WorkerStatus]:
        return [
            worker.status
            for worker in self.workers.values()
            if worker.grant is not None and not worker.is_expired and worker.status is not None
        ]

    def candidates(self, ledger: CreditLedger) -> list[Candidate]:
        """Workers that serve a version and have free slots."""
        return [candidate for candidate in self.able(ledger) if candidate.num_slots > 0]

    def able(self, ledger: CreditLedger) -> list[Candidate]:
        """Workers that serve a version, with free slots (`num_slots` > 0) or without."""
        able = []
        for worker in self.workers.values():
            status = worker.status
            if worker.grant is None or worker.is_expired or status is None or status.served_version is None:
                continue
            if status.state not in (WorkerState.SERVING, WorkerState.RELOADING):
                continue
            num_used = ledger.num_used(worker.worker_id)
            num_scoring = _believable(status.num_scoring, num_used=num_used, most=self.max_scoring)
            able.append(
                Candidate(
                    worker_id=worker.worker_id,
                    num_slots=status.capacity + self.prefetch_tasks + num_scoring - num_used,
                    served_version=status.served_version,
                    is_idle=num_used == num_scoring,
                    is_serving=status.state is WorkerState.SERVING,
                )
            )
        return able


def _believable(num_scoring: int, *, num_used: int, most: int) -> int:
    """How many rollouts a worker may be scoring that says so many: none that were not issued, and no more than `most`.

    Their slots are free while their tasks are open.
    """
    return max(0, min(num_scoring, num_used, most))


def is_astray(worker: KnownWorker, *, limit: int, now: float, grace: float) -> bool:
    """Whether a worker goes by another grant than its own, for `limit` heartbeats in a row over `grace` seconds.

    Call once per heartbeat. For a moment it names the grant before, or none: it has not read the new one yet.
    """
    named = None if worker.status is None else worker.status.grant_id
    if worker.grant is None or named in (None, worker.grant.grant_id):
        worker.num_astray, worker.astray_since = 0, None
        return False
    worker.num_astray += 1
    worker.astray_since = now if worker.astray_since is None else worker.astray_since
    return worker.num_astray >= limit and now - worker.astray_since >= grace


def missing_tasks(
    worker: KnownWorker, ledger: CreditLedger, *, limit: int, now: float, grace: float
) -> list[str]:
    """Tasks the worker has read, does not name in its heartbeats and has not ended: lost between the two.

    Call once per heartbeat. A task counts as missing after `limit` heartbeats in a row over `grace` seconds.
    """
    status = worker.status
    if status is None or worker.grant is None or status.grant_id != worker.grant.grant_id:
        return []
    named = set(status.open_tasks)
    missing = []
    for open_task in ledger.of_worker(worker.worker_id):
        offset = open_task.known_offset()
        if open_task.task_id in named or offset is None or offset >= status.tasks_position:
            open_task.num_missing = 0
            open_task.missing_since = None
            continue
        open_task.num_missing += 1
        open_task.missing_since = now if open_task.missing_since is None else open_task.missing_since
        if open_task.num_missing >= limit and now - open_task.missing_since >= grace:
            missing.append(open_task.task_id)
    return missing
