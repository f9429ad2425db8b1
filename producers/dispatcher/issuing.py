"""Which tasks go out now: evaluations first, then what open groups lack, then new groups.

Everything stops as soon as nobody can take the next task; nothing is queued outside the log.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from producers.dispatcher.credits import full_of_group, next_in_turn
from producers.dispatcher.dataset import PromptOrder
from producers.dispatcher.outbox import TaskOutbox
from producers.dispatcher.rounds import Round
from producers.dispatcher.seats import tasks_of
from producers.dispatcher.tasks import IssuePosition, TaskWriter
from rollog.kernel.logs import get_logger
from schemas import CancelReason, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.dispatcher.evaluation_tracker import EvaluationKey, WantedEvaluation
    from producers.dispatcher.group_tracker import Wanted
    from producers.dispatcher.reader import LogReader
    from producers.dispatcher.sender import TaskSender
    from producers.dispatcher.settings import DispatcherSettings
    from producers.dispatcher.state import DispatcherState
    from producers.dispatcher.turn_positions import TurnPositions
    from rollog.kernel.metrics import Metrics
    from schemas import Grant, Prompt, RolloutTask

log = get_logger("dispatcher")


class Issuer:
    """Sends tasks and cancels while credits, admission and versions allow."""

    def __init__(
        self,
        settings: DispatcherSettings,
        state: DispatcherState,
        *,
        reader: LogReader,
        sender: TaskSender,
        metrics: Metrics,
        epoch: int,
        prompts: Sequence[Prompt],
        held_out: Sequence[Prompt],
        turns: TurnPositions,
    ) -> None:
        self._turns = turns
        self._state = state
        self._reader = reader
        self._sender = sender
        self._issued_for = cache(metrics.dispatcher_tasks_issued.labels)
        self._writer = TaskWriter(settings, epoch)
        self._prompts = prompts
        self._held_out = held_out
        self._groups = settings.groups
        self._replicate = settings.dispatch.replicate
        self._num_seats = settings.environment.seats
        self._scheduling = settings.dispatch.scheduling
        self._round = Round()
        self._last_worker: str | None = None
        self._slots = state.slots
        self._outbox = TaskOutbox(
            sender,
            max_tasks=settings.dispatch.max_tasks_per_record,
            accepts_batches=state.accepts_batches,
        )
        self._position: IssuePosition | None = None
        self._order = PromptOrder(
            num_prompts=len(prompts),
            seed=settings.run_config.seed,
            shuffle=settings.data.shuffle,
            num_epochs=settings.data.num_epochs,
        )
        self._lacking: set[int] = set()
        self._evaluated_version = -1

    @property
    def at_dataset_end(self) -> bool:
        """Whether the last group has been issued."""
        return (
            self._order.num_groups is not None and self._state.groups.next_group_id >= self._order.num_groups
        )

    @property
    def last_task(self) -> tuple[int, int]:
        """(epoch, sequence) of the task issued last; sequence 0 before any."""
        return self._writer.last_task

    def num_waiting(self, *, is_trained: bool) -> int:
        """Rollouts that would be issued now if slots were free; once training is over, those of evaluations alone."""
        num_evaluated = self._state.evaluations.num_pending * self._num_seats
        if is_trained:
            return num_evaluated
        groups = self._state.groups
        num_lacking = sum(1 for group in self._lacking for _ in groups.wanted(group))
        return num_evaluated + num_lacking + self._num_groups_to_open() * self._groups.num_replicas

    def _num_groups_to_open(self) -> int:
        groups = self._state.groups
        if self._order.num_groups is None:
            return groups.num_missing
        return min(groups.num_missing, max(0, self._order.num_groups - groups.next_group_id))

    def cancel_surplus(self) -> None:
        """Take back tasks nobody needs any more, and note which groups lack attempts."""
        for group in self._state.groups.take_changed():
            self._state.cancel(self._state.groups.surplus_tasks(group), CancelReason.SURPLUS)
            self._lacking.add(group)
        for open_task, reason in self._state.take_cancels():
            worker = self._state.workers.workers.get(open_task.worker_id)
            if worker is not None and worker.grant is not None:
                self._sender.cancel(open_task, worker.grant.partition, reason)

    def issue_evaluations(self, *, is_final: bool = False) -> bool:
        """Send what evaluations lack; False when slots ran out first."""
        version = self._state.ledger.version
        # Several versions may have been committed since the last turn; each may be due.
        for due in range(self._evaluated_version + 1, version + 1):
            self._state.evaluations.start(due)
        self._evaluated_version = version
        if is_final:
            self._state.evaluations.start(version, is_final=True)
        self._position = None
        are_issued = all(self._issue_one_evaluation(key) for key in self._state.evaluations.unanswered())
        self._outbox.send()
        return are_issued

    def _issue_one_evaluation(self, key: EvaluationKey) -> bool:
        while (wanted := self._state.evaluations.wanted(key)) is not None:
            self._slots.refresh()
            worker_id = self._slots.free.choose(
                num_slots=self._num_seats, min_version=key.version, is_pinned=True
            )
            if worker_id is not None:
                self._issue_evaluation(wanted, worker_id)
            elif self._state.workers.num_serving(key.version):
                return False  # its slots are full: training waits, or the version could be gone before the answers
            elif self._may_still_be_served(key.version):
                return True
            else:
                released = self._state.evaluations.release(key)
                self._state.cancel(released, CancelReason.EVALUATION_GIVEN_UP)
                log.warning("evaluation given up", evaluation=key.name, version=key.version)
        return True

    def _may_still_be_served(self, version: int) -> bool:
        """Whether a worker can still come to this version: workers skip to the newest one."""
        is_newest = version == self._state.ledger.version
        return is_newest or self._state.workers.num_serving_before(version) > 0

    def issue_training(self, now_seconds: float) -> None:
        """Send what open groups lack, oldest first, then open new groups; in rounds where that is configured.

        An attempt that no worker can take now, for the version it needs or for what workers hold of its group, waits
        and has the first choice next time; what comes after it may take the slots that it cannot use.
        """
        self._turns.refresh(now_seconds)
        if self._scheduling == "batch" and not self._round_is_issued():
            return
        # Once a turn: nothing but issuing changes positions and free slots until the next one.
        self._position = None
        self._slots.refresh()
        self._issue_what_lacks()
        self._outbox.send()

    def _issue_what_lacks(self) -> None:
        for group in sorted(self._lacking):
            lacking = tasks_of(self._state.groups.wanted(group), self._num_seats)
            if all(self._issue_attempts(attempts) for attempts in lacking):
                self._lacking.discard(group)
            elif not self._has_slots:
                return
        while self._may_open() and not self.at_dataset_end:
            if not self._open_group(self._state.groups.next_group_id):
                return
        if not self._lacking:
            self._round.complete()

    @property
    def _has_slots(self) -> bool:
        return self._scheduling != "static" and not self._slots.free.is_empty

    def _round_is_issued(self) -> bool:
        """Whether a round is on its way out: the one that was, or the next if nothing is under way any more."""
        groups = self._state.groups
        is_idle = not any(open_task.task.kind is Kind.TRAINING for open_task in self._state.credits.all())
        self._round.advance(
            is_idle=is_idle, next_group_id=groups.next_group_id, num_missing=groups.num_missing
        )
        return self._round.is_issued

    def _may_open(self) -> bool:
        groups = self._state.groups
        within_round = self._scheduling != "batch" or self._round.includes(groups.next_group_id)
        return within_round and groups.may_open()

    def _open_group(self, group: int) -> bool:
        attempts = list(self._state.groups.first_attempts(group))
        if not self._replicate:
            return self._issue_attempts(attempts)
        for num_issued, of_task in enumerate(tasks_of(attempts, self._num_seats)):
            if not self._issue_attempts(of_task):
                # With no attempt issued the group is not open yet, and nothing of it is lacking.
                if num_issued:
                    self._lacking.add(group)
                return False
        return True

    def _issue_attempts(self, attempts: Sequence[Wanted]) -> bool:
        """Send a task for neighbouring replicas of a group; it says of all what is said of the first."""
        wanted, num_replicas = attempts[0], len(attempts)
        position = self._issue_position()
        worker_id = self._choose_worker(
            wanted.group_id, num_replicas, self._writer.min_version(wanted, position)
        )
        grant = self._grant_of(worker_id)
        if worker_id is None or grant is None:
            return False
        prompt = self._prompts[self._order.prompt_index(wanted.group_id)]
        task = self._writer.training(wanted, prompt, grant.grant_id, position, num_replicas)
        self._send(task, worker_id, grant)
        if self._scheduling != "static":
            self._slots.free.take(worker_id, num_replicas)
        return True

    def _choose_worker(self, group: int, num_slots: int, min_version: int) -> str | None:
        if self._scheduling == "static":
            # A task that a worker cannot start yet waits there: for a slot, and for the version it needs.
            self._last_worker = next_in_turn(self._slots.able.values(), self._last_worker)
            return self._last_worker
        full: frozenset[str] = frozenset()
        if self._groups.redundant_replicas:
            full = full_of_group(
                self._state.credits.num_of_group(group),
                num_workers=sum(worker.served_version >= min_version for worker in self._slots.able.values()),
                num_replicas=self._groups.num_replicas,
                num_redundant=self._groups.redundant_replicas,
                num_slots=num_slots,
            )
        return self._slots.free.choose(num_slots=num_slots, min_version=min_version, excluded=full)

    def _issue_evaluation(self, wanted: WantedEvaluation, worker_id: str) -> None:
        grant = self._grant_of(worker_id)
        assert grant is not None, "candidates hold a grant"
        self._state.evaluations.take(wanted)
        prompt = self._held_out[wanted.prompt_index]
        self._send(
            self._writer.evaluation(wanted, prompt, grant.grant_id, self._issue_position()), worker_id, grant
        )

    def _send(self, task: RolloutTask, worker_id: str, grant: Grant) -> None:
        open_task = self._state.on_task(task, worker_id, None)
        self._outbox.add(open_task, grant.partition)
        reason = task.issue_reason.value if task.kind is Kind.TRAINING else "evaluation"
        self._issued_for(task.kind.value, reason).inc()

    def _grant_of(self, worker_id: str | None) -> Grant | None:
        worker = None if worker_id is None else self._state.workers.workers.get(worker_id)
        return None if worker is None else worker.grant

    def _issue_position(self) -> IssuePosition:
        """Of this turn: nothing is read while tasks are issued."""
        if self._position is None:
            self._position = IssuePosition(
                version=self._state.ledger.version,
                alpha=self._state.ledger.alpha,
                ledger_position=self._reader.ledger_position,
                samples_positions=tuple(self._reader.samples_positions),
                turns_positions=self._turns.positions,
            )
        return self._position
