"""Everything a dispatcher knows, as a fold of the log.

Pure: records come in decoded, time comes in as a number. Nothing is sent from here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from producers.dispatcher.credits import CreditLedger, OpenTask
from producers.dispatcher.evaluation_tracker import EvaluationBook
from producers.dispatcher.group_tracker import GroupTracker
from producers.dispatcher.workers import WorkerRegistry
from rollog.rules.ledger_state import LedgerState
from schemas import (
    CancelReason,
    DatasetEnd,
    DispatcherEpoch,
    Grant,
    Kind,
    Revoke,
    RunClosed,
    Sample,
    Status,
    Stopped,
    sample_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from producers.dispatcher.settings import DispatcherSettings
    from rollog.rules.headers import SampleHeader
    from rollog.rules.reading import ControlRecord
    from schemas import LedgerRecord, RolloutTask, WorkerStatus

lost_by = "dispatcher"


class DispatcherState:
    """Ledger, groups, evaluations, credits and workers, folded from their topics."""

    def __init__(self, settings: DispatcherSettings, num_held_out: int) -> None:
        self.ledger = LedgerState()
        self.groups = GroupTracker(
            self.ledger, settings.groups, settings.freshness, settings.run_config.num_steps
        )
        self.evaluations = EvaluationBook(settings.evaluation, num_held_out)
        self.credits = CreditLedger()
        self.workers = WorkerRegistry(
            lease_seconds=settings.dispatch.lease_seconds,
            num_partitions=settings.broker.max_workers,
            prefetch_tasks=settings.dispatch.prefetch_tasks,
        )
        self.highest_epoch = 0
        self.last_group_id: int | None = None
        self.is_stopped = False
        self.is_run_closed = False
        self.to_cancel: list[tuple[str, CancelReason]] = []
        self.departed: list[str] = []
        self.new_heartbeats: set[str] = set()
        self._revoked: set[str] = set()

    def on_control(self, record: ControlRecord, now: float) -> None:
        """A record of `control`; what a superseded dispatcher still writes is void, here as for workers."""
        if record.epoch < self.highest_epoch:
            return
        match record:
            case DispatcherEpoch(epoch=epoch):
                self.highest_epoch = epoch
            case Grant() as grant if grant.grant_id not in self._revoked:
                self.workers.granted(grant, now)
            case Revoke(grant_id=grant_id):
                self._revoked.add(grant_id)
                self.workers.revoked(grant_id)
            case DatasetEnd(last_group_id=last):
                self.last_group_id = last
            case Stopped():
                self.is_stopped = True
            case RunClosed():
                self.is_run_closed = True

    def on_ledger(self, record: LedgerRecord, digest: bytes) -> None:
        """A record of `steps`. Raises LedgerError when the chain is broken."""
        self.ledger.apply(record, digest)
        self.cancel(self.groups.judged(record), CancelReason.SATISFIED)

    def on_task(self, task: RolloutTask, worker_id: str, offset: int | None) -> OpenTask:
        """A valid task, issued now or found in the log before its samples are taken in."""
        replicas = set(range(task.replica, task.replica + task.num_replicas))
        open_task = OpenTask(task=task, worker_id=worker_id, remaining=replicas, offset=offset)
        self.credits.issue(open_task)
        if task.kind is Kind.EVALUATION:
            self.evaluations.issued(task)
        else:
            self.groups.issued(task)
        return open_task

    def on_sample(self, header: SampleHeader) -> None:
        """A record of `samples`, decodable or not."""
        self.credits.end(header.task_id, header.replica)
        self.groups.ended(header)

    def on_evaluation(self, sample: Sample) -> None:
        """A record of `evaluations`; one that only its headers identify ends its task all the same."""
        open_task = self.credits.end(sample.task_id, sample.replica)
        if sample.evaluation is not None:
            self.evaluations.ended(sample)
        elif open_task is not None:
            self.evaluations.lost(open_task.task)

    def on_worker(self, status: WorkerStatus, now: float) -> None:
        """A heartbeat; what it says is running and can only end stale is noted for cancelling."""
        self.workers.heard(status, now)
        self.cancel(self._hopeless(status), CancelReason.STALE)
        self.new_heartbeats.add(status.worker_id)

    def _hopeless(self, status: WorkerStatus) -> list[str]:
        running = ((self.credits.get(task_id), first) for task_id, first in status.first_versions.items())
        return [
            open_task.task_id
            for open_task, first in running
            if open_task is not None and self.groups.cannot_be_fresh(open_task.task.group_id, first)
        ]

    def on_departure(self, worker_id: str) -> None:
        """A worker wiped its record: it is gone."""
        if worker_id in self.workers.workers and worker_id not in self.departed:
            self.departed.append(worker_id)

    def lose(self, open_task: OpenTask) -> list[Sample]:
        """Give an open task up; returns the `lost` records that say so, one per replica it still owes."""
        replicas = sorted(open_task.remaining)
        self.credits.lose(open_task.task_id)
        if open_task.task.kind is Kind.EVALUATION:
            self.evaluations.lost(open_task.task)
        else:
            self.groups.lost(open_task.task)
        return [_lost_sample(open_task, replica) for replica in replicas]

    def cancel(self, task_ids: Iterable[str], reason: CancelReason) -> None:
        """Note tasks that nobody needs any more."""
        self.to_cancel.extend((task_id, reason) for task_id in task_ids)

    def take_cancels(self) -> list[tuple[OpenTask, CancelReason]]:
        """Open tasks to be cancelled now, with the reason; each is returned once."""
        noted, self.to_cancel = self.to_cancel, []
        found = []
        for task_id, reason in noted:
            open_task = self.credits.get(task_id)
            if open_task is not None and not open_task.is_cancelled:
                open_task.is_cancelled = True
                found.append((open_task, reason))
        return found

    def cancel_training_tasks(self) -> None:
        """Note every open training task for cancelling: the last step is taken."""
        self.cancel(
            (found.task_id for found in self.credits.all() if found.task.kind is Kind.TRAINING),
            CancelReason.SATISFIED,
        )

    def cancel_tasks_of_closed_groups(self) -> None:
        """Note for cancelling what an earlier dispatcher could not take back any more."""
        self.cancel(
            (
                open_task.task_id
                for open_task in self.credits.all()
                if open_task.task.kind is Kind.TRAINING
                and open_task.task.group_id in self.ledger.closed_groups
            ),
            CancelReason.SATISFIED,
        )


def _lost_sample(open_task: OpenTask, replica: int) -> Sample:
    task = open_task.task
    lost = Sample(
        sample_id=sample_id(task.group_id, replica, task.attempt),
        task_id=task.task_id,
        kind=task.kind,
        status=Status.LOST,
        epoch=task.epoch,
        grant_id=task.grant_id,
        worker_id=open_task.worker_id,
        group_id=task.group_id,
        replica=replica,
        attempt=task.attempt,
        prompt_id=task.prompt.prompt_id,
        temperature=task.sampling.temperature,
        seed=task.seed,
        metadata={"written_by": lost_by},
    )
    if task.kind is Kind.TRAINING:
        return lost
    return replace(lost, pinned_version=task.pinned_version, evaluation=task.evaluation)
