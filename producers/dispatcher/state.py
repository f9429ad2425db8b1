"""Everything a dispatcher knows, as a fold of the log.

Pure: records come in decoded, time comes in as a number. Nothing is sent from here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from producers.dispatcher.credits import CreditLedger, OpenTask
from producers.dispatcher.evaluation_tracker import EvaluationTracker
from producers.dispatcher.group_tracker import GroupTracker
from producers.dispatcher.worker_slots import WorkerSlots
from producers.dispatcher.workers import WorkerRegistry
from rollog.kernel.errors import Superseded
from rollog.rules.control_log import ControlLog
from rollog.rules.issued_tasks import IssuedTasks, answers, is_of_task
from rollog.rules.ledger_state import LedgerState
from rollog.rules.samples import sample_of_task
from schemas import (
    CancelReason,
    DatasetEnd,
    Disposition,
    Grant,
    Kind,
    LedgerKind,
    Revoke,
    RoleStatus,
    RunClosed,
    RunRole,
    Status,
    Stopped,
    WorkerState,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping

    from producers.dispatcher.settings import DispatcherSettings
    from rollog.rules.headers import SampleHeader
    from rollog.rules.reading import ControlRecord
    from schemas import LedgerRecord, RolloutTask, Sample, WorkerStatus
    from schemas.sample_summary import SampleSummary

lost_by = "dispatcher"


class DispatcherState:
    """Ledger, groups, evaluations, credits and workers, folded from their topics."""

    def __init__(
        self, settings: DispatcherSettings, num_held_out: int, ledger: LedgerState | None = None
    ) -> None:
        self.ledger = ledger or LedgerState()
        self.groups = GroupTracker(
            self.ledger, settings.groups, settings.freshness, settings.run_config.num_steps
        )
        self.evaluations = EvaluationTracker(settings.evaluation, num_held_out, settings.environment.seats)
        self.credits = CreditLedger()
        self.workers = WorkerRegistry(
            lease_seconds=settings.dispatch.lease_seconds,
            num_partitions=settings.broker.max_workers,
            prefetch_tasks=settings.dispatch.prefetch_tasks,
            max_scoring=settings.reward.max_in_flight,
        )
        self.slots = WorkerSlots(self.workers, self.credits)
        self.control = ControlLog(settings.broker.max_workers)
        self.issued = IssuedTasks()
        self.last_group_id: int | None = None
        self.is_stopped = False
        self._says_closed = False
        self.to_cancel: list[tuple[str, CancelReason]] = []
        self.tombstoned: list[str] = []
        self.new_heartbeats: set[str] = set()
        self.trainer: RoleStatus | None = None
        """The trainer's newest heartbeat, for people; None before any, and when it has left."""
        self.trainer_heard_at: float | None = None
        self._trainer_accepts_batches = False
        self.load_failure: WorkerStatus | None = None
        """The newest heartbeat that tells of a failed load, until a worker serves; for people."""
        self._revoked: set[str] = set()
        self._other_writers = frozenset(settings.groups.other_writers)
        self._has_durable_turns = settings.dispatch.durable_turns

    def on_control(self, record: ControlRecord, now: float) -> None:
        """Fold a record of `control`; what a superseded dispatcher still writes, or nobody can have, is void."""
        if not self.control.add(record):
            return
        match record:
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
                self._says_closed = True

    @property
    def is_run_closed(self) -> bool:
        """Whether `RunClosed` is written. Before the ledger's close record anybody who says so is wrong."""
        return self._says_closed and self.ledger.is_closed

    def check_epoch(self, epoch: int) -> None:
        """Raise Superseded when a newer dispatcher than that of `epoch` owns the run."""
        if self.control.epoch > epoch:
            raise Superseded(
                f"a dispatcher with epoch {self.control.epoch} has taken over from this one (epoch {epoch}); "
                "only one may run: leave the newer one alone"
            )

    def on_ledger(self, record: LedgerRecord, digest: bytes) -> None:
        """Fold a record of `steps`. Raises LedgerError when the chain is broken."""
        self.ledger.apply(record, digest)
        self.issued.forget(group.group_id for group in record.closed_groups)
        self.cancel(self.groups.judged(record), CancelReason.SATISFIED)
        self.cancel(self._made_hopeless(record), CancelReason.STALE)

    def on_task(self, task: RolloutTask, worker_id: str, offset: int | None) -> OpenTask:
        """Open a valid task, issued now or read from the log before its samples."""
        replicas = set(range(task.replica, task.replica + task.num_replicas))
        open_task = OpenTask(task=task, worker_id=worker_id, remaining=replicas, offset=offset)
        self.credits.issue(open_task)
        if task.group_id not in self.ledger.closed_groups:
            # Its place does not matter here: what a fence voids has not been folded.
            self.issued.add(task, partition=0, offset=0 if offset is None else offset)
        if task.kind is Kind.EVALUATION:
            self.evaluations.issued(task)
        else:
            self.groups.issued(task)
        return open_task

    def on_logged_task(self, task: RolloutTask, worker_id: str, offset: int, ended: Collection[int]) -> None:
        """Take in a valid task of the log, of whose replicas these have ended; opens it unless that is all of them.

        Only tasks of closed groups may come with replicas that have ended: of the others the samples are folded later.
        """
        if len(ended) == task.num_replicas:
            self.groups.issued(task)
            return
        self.on_task(task, worker_id, offset)
        for replica in ended:
            self.credits.end(task.task_id, replica)

    def on_sample(self, header: SampleHeader, sample: Sample | SampleSummary | None) -> None:
        """Fold a record of `samples`, decodable or not: its replica has ended, if the log knows its task."""
        if header.group_id not in self.ledger.closed_groups:
            header = self.issued.placed(
                header,
                sample,
                grants=self.control.grants,
                newest_epoch=self.control.epoch,
                other_writers=self._other_writers,
            )
            if header.group_id < 0:
                return
        open_task = self.credits.get(header.task_id)
        if open_task is not None and is_of_task(header, open_task.task):
            self.credits.end(header.task_id, header.replica)
        self.groups.ended(header)

    def on_evaluation(self, sample: Sample) -> None:
        """Fold a record of `evaluations`, if it answers an open task: anybody may be able to write there.

        One that only its headers identify ends its task all the same.
        """
        open_task = self.credits.get(sample.task_id)
        if open_task is None or not answers(sample, open_task.task):
            return
        self.credits.end(sample.task_id, sample.replica)
        if sample.evaluation is not None:
            self.evaluations.ended(sample, is_task_over=not open_task.remaining)
        else:
            self.evaluations.lost(open_task.task)

    def on_worker(self, status: WorkerStatus, now: float, *, accepts_batches: bool = False) -> None:
        """Fold a heartbeat; running rollouts that cannot be fresh when they end are noted for cancelling."""
        before = self.workers.first_versions(status.worker_id)
        self.workers.on_heartbeat(status, now, accepts_batches=accepts_batches)
        if status.error is not None:
            self.load_failure = status
        elif status.state is WorkerState.SERVING:
            self.load_failure = None
        if self._has_durable_turns:
            self._note_beginnings(status)
        # Of those it named before nothing has changed but by the ledger, whose records look at them.
        news = dict(status.first_versions.items() - before.items())
        self.cancel(self._cannot_be_fresh(news), CancelReason.STALE)
        self.new_heartbeats.add(status.worker_id)

    def _made_hopeless(self, record: LedgerRecord) -> list[str]:
        """Running rollouts, as last reported, that can only end stale now: the next heartbeats come too late."""
        among: set[int] | None = None
        if record.kind is LedgerKind.VERDICTS:
            # Version and alpha are as before; only what its verdicts protect is new.
            among = {
                verdict.group_id for verdict in record.verdicts if verdict.disposition is Disposition.STALE
            }
            if not among:
                return []
        return [
            task_id
            for worker in self.workers.workers.values()
            if worker.status is not None
            for task_id in self._cannot_be_fresh(worker.status.first_versions, among)
        ]

    def _note_beginnings(self, status: WorkerStatus) -> None:
        for task_id, first_version in status.first_versions.items():
            open_task = self.credits.get(task_id)
            if open_task is not None and open_task.task.kind is Kind.TRAINING:
                self.groups.began(open_task.task, first_version)

    def _cannot_be_fresh(
        self, first_versions: Mapping[str, int], among: Container[int] | None = None
    ) -> list[str]:
        running = ((self.credits.get(task_id), first) for task_id, first in first_versions.items())
        return [
            open_task.task_id
            for open_task, first in running
            if open_task is not None
            and (among is None or open_task.task.group_id in among)
            and self.groups.cannot_be_fresh(open_task.task.group_id, first)
        ]

    def on_role(self, status: RoleStatus, now: float, *, accepts_batches: bool = False) -> None:
        """Note a heartbeat of the trainer; the dispatcher's are its own.

        Nothing else is decided by it than whether a record may hold several tasks: one that cannot read them would find
        that its samples were never ordered.
        """
        if status.role is RunRole.TRAINER:
            self.trainer, self.trainer_heard_at = status, now
            self._trainer_accepts_batches = accepts_batches

    def accepts_batches(self, worker_id: str) -> bool:
        """Whether this worker and the trainer both say that they read records of several tasks."""
        worker = self.workers.workers.get(worker_id)
        is_read = self.trainer is not None and self._trainer_accepts_batches
        return is_read and worker is not None and worker.accepts_batches

    def on_tombstone(self, worker_id: str) -> None:
        """Note a worker that leaves, until its samples are read and its grant can be revoked; or the trainer."""
        if worker_id == RunRole.TRAINER:
            self.trainer = None
        if worker_id in self.workers.workers and worker_id not in self.tombstoned:
            self.tombstoned.append(worker_id)

    def lose(self, open_task: OpenTask) -> list[Sample]:
        """Close an open task as lost; returns the `lost` records to write, one per replica without a sample."""
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
        cancels = []
        for task_id, reason in noted:
            open_task = self.credits.get(task_id)
            if open_task is not None and not open_task.is_cancelled:
                open_task.is_cancelled = True
                cancels.append((open_task, reason))
        return cancels

    def cancel_training_tasks(self) -> None:
        """Note every open training task for cancelling: the last step is taken."""
        self.cancel(
            (open_task.task_id for open_task in self.credits.all() if open_task.task.kind is Kind.TRAINING),
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
    # The worker may have used another seed for a later replica of the task; a lost rollout has no tokens to explain.
    lost = sample_of_task(task, replica, status=Status.LOST, worker_id=open_task.worker_id, seed=task.seed)
    return replace(lost, metadata={"written_by": lost_by})
