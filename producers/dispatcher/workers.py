"""The workers a dispatcher knows: last heartbeats, grants, leases that expired.

Pure: the caller gives the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from producers.dispatcher.credits import Candidate
from rollog.rules.task_names import sequence_of
from schemas import WorkerState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.dispatcher.credits import CreditLedger
    from schemas import Grant, WorkerStatus


_serving = frozenset({WorkerState.SERVING, WorkerState.RELOADING})


@dataclass(slots=True, kw_only=True)
class KnownWorker:
    """One worker incarnation."""

    worker_id: str
    last_heartbeat: float
    status: WorkerStatus | None = None
    grant: Grant | None = None
    is_expired: bool = False
    accepts_batches: bool = False
    """Whether its newest heartbeat says that it reads records of several tasks."""
    num_astray: int = 0
    astray_since: float | None = None
    suspects: set[str] = field(default_factory=set)
    """Tasks that it has read and did not name in its newest heartbeat."""


@dataclass(slots=True)
class WorkerRegistry:
    """Leases, grants and partitions of the workers.

    A worker may hold tasks for its capacity, `prefetch_tasks` more, and one for each rollout that it is scoring, up to
    `max_scoring` of them.

    What is asked every turn does not look at every worker: `_due` is a heap with one entry for each lease that runs,
    whose time is brought up to date when it comes up; `_ungranted` are the workers without a grant.
    """

    lease_seconds: float
    num_partitions: int
    prefetch_tasks: int
    max_scoring: int
    workers: dict[str, KnownWorker] = field(default_factory=dict)
    _due: list[tuple[float, str]] = field(default_factory=list)
    _in_due: set[str] = field(default_factory=set)
    _ungranted: dict[str, None] = field(default_factory=dict)
    _touched: set[str] = field(default_factory=set)

    def take_touched(self) -> set[str]:
        """Workers of which anything changed since the last call that decides about their slots."""
        touched, self._touched = self._touched, set()
        return touched

    def first_versions(self, worker_id: str) -> Mapping[str, int]:
        """The version under which each task began that the worker's newest heartbeat names."""
        worker = self.workers.get(worker_id)
        return {} if worker is None or worker.status is None else worker.status.first_versions

    def on_heartbeat(self, status: WorkerStatus, now: float, *, accepts_batches: bool = False) -> None:
        """Renew a worker's lease; one whose lease had expired is alive again and waits for a new grant."""
        worker = self.workers.get(status.worker_id)
        if worker is None:
            worker = self._add(status.worker_id, now)
        worker.last_heartbeat = now
        worker.status = status
        worker.accepts_batches = accepts_batches
        worker.is_expired = False
        self._await_expiry(worker)
        self._touched.add(worker.worker_id)

    def _add(self, worker_id: str, now: float) -> KnownWorker:
        worker = self.workers[worker_id] = KnownWorker(worker_id=worker_id, last_heartbeat=now)
        self._ungranted[worker_id] = None
        self._await_expiry(worker)
        return worker

    def _await_expiry(self, worker: KnownWorker) -> None:
        if worker.worker_id not in self._in_due:
            self._in_due.add(worker.worker_id)
            heappush(self._due, (worker.last_heartbeat + self.lease_seconds, worker.worker_id))

    def expire(self, worker: KnownWorker) -> None:
        """Note that the lease of a worker has expired: it takes nothing until it is heard again."""
        worker.is_expired = True
        self._touched.add(worker.worker_id)

    def release(self, worker_id: str) -> KnownWorker | None:
        """Remove a worker that leaves; returns it if it was known."""
        self._ungranted.pop(worker_id, None)
        self._touched.add(worker_id)
        return self.workers.pop(worker_id, None)

    def granted(self, grant: Grant, now: float) -> None:
        """Note a grant that is in the log (the newest epoch of it wins)."""
        worker = self.workers.get(grant.worker_id)
        if worker is None:
            worker = self._add(grant.worker_id, now)
        if worker.grant is None or worker.grant.epoch <= grant.epoch:
            worker.grant = grant
            self._ungranted.pop(worker.worker_id, None)
            self._touched.add(worker.worker_id)

    def revoked(self, grant_id: str) -> None:
        """Note that a grant was taken back: its worker has none."""
        for worker in self.workers.values():
            if worker.grant is not None and worker.grant.grant_id == grant_id:
                worker.grant = None
                self._ungranted[worker.worker_id] = None
                self._touched.add(worker.worker_id)

    def restart_leases(self, now: float) -> None:
        """Start every lease again, after a time without the broker: missing heartbeats prove nothing."""
        for worker in self.workers.values():
            worker.last_heartbeat = now

    def with_expired_lease(self, now: float) -> list[KnownWorker]:
        """Workers without a heartbeat for `lease_seconds`, as far as nobody has acted on it yet."""
        expired, later = [], []
        while self._due and self._due[0][0] < now:
            _, worker_id = heappop(self._due)
            worker = self.workers.get(worker_id)
            if worker is None or worker.is_expired:
                self._in_due.discard(worker_id)
                continue
            if now - worker.last_heartbeat > self.lease_seconds:
                expired.append(worker)
            later.append((worker.last_heartbeat + self.lease_seconds, worker_id))
        for due in later:
            heappush(self._due, due)
        return expired

    def without_grant(self) -> list[KnownWorker]:
        """Workers with a heartbeat that wait for a grant."""
        return [
            worker
            for worker in map(self.workers.__getitem__, self._ungranted)
            if not worker.is_expired
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

    def holds_grant(self, worker_id: str) -> bool:
        """Whether a worker holds a grant and its lease runs."""
        worker = self.workers.get(worker_id)
        return worker is not None and worker.grant is not None and not worker.is_expired

    def num_serving(self, version: int) -> int:
        """Workers that serve exactly this version, whatever they have to do."""
        return sum(
            status.state is WorkerState.SERVING and status.served_version == version
            for status in self._statuses()
        )

    def num_serving_before(self, version: int) -> int:
        """Workers that serve an earlier version and may be on their way to this one, whatever they say."""
        # Who fetches a version goes on serving the one before it.
        return sum(
            status.state in _serving and status.served_version is not None and status.served_version < version
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
        candidates = (self.candidate(worker_id, ledger) for worker_id in self.workers)
        return [candidate for candidate in candidates if candidate is not None]

    def candidate(self, worker_id: str, ledger: CreditLedger) -> Candidate | None:
        """What a worker can take; None where it is unknown, without a grant, or serves nothing."""
        worker = self.workers.get(worker_id)
        status = None if worker is None else worker.status
        if worker is None or worker.grant is None or worker.is_expired or status is None:
            return None
        if status.served_version is None or status.state not in _serving:
            return None
        num_used = ledger.num_used(worker_id)
        num_scoring = _believable(status.num_scoring, num_used=num_used, most=self.max_scoring)
        return Candidate(
            worker_id=worker_id,
            num_slots=status.capacity + self.prefetch_tasks + num_scoring - num_used,
            served_version=status.served_version,
            is_idle=num_used == num_scoring,
            is_serving=status.state is WorkerState.SERVING,
        )


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
    suspects, worker.suspects = worker.suspects, set()
    missing = []
    for task_id in ledger.ids_of_worker(worker.worker_id) - set(status.open_tasks):
        open_task = ledger.get(task_id)
        assert open_task is not None, "open tasks of a worker are open"
        offset = open_task.known_offset()
        if offset is None or offset >= status.tasks_position:
            continue
        worker.suspects.add(task_id)
        open_task.num_missing += 1
        open_task.missing_since = now if open_task.missing_since is None else open_task.missing_since
        if open_task.num_missing >= limit and now - open_task.missing_since >= grace:
            missing.append(task_id)
    for open_task in map(ledger.get, suspects - worker.suspects):
        if open_task is not None:
            open_task.num_missing, open_task.missing_since = 0, None
    return sorted(missing, key=sequence_of)
