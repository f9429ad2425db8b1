"""What the dispatcher waits for while no step comes: who has to act, and what helps. Pure.

The first of these that holds is told:

| cause | who has to act |
| --- | --- |
| the broker does not answer | broker |
| no trainer is heard; it says that it computes, holds or closes by itself; it has not begun the run | trainer |
| no worker is heard | worker |
| a worker holds tasks: which has the oldest, what of, for how long, whether it loads and is heard | worker |
| nothing is under way: a worker cannot load, has no grant, starts or reloads; none serves what is needed | worker |
| nothing is under way, and nobody lacks anything: verdicts are waited for | trainer |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.printable import printable
from rollog.rules.standing_still import (
    Cause,
    absent_role,
    absent_workers,
    acts_itself,
    silent_seconds,
    words_of,
)
from schemas import Kind, RunRole, WorkerState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.dispatcher.credits import OpenTask
    from producers.dispatcher.state import DispatcherState
    from producers.dispatcher.workers import KnownWorker
    from schemas import WorkerStatus

_observed_every_seconds = 1.0
_broker_silent_seconds = 2.0
_most_named = 3
_worker_silent_seconds = 5.0


class DispatcherWaits:
    """Remembers since when tasks are under way and workers are heard; `begun_at` is when the dispatcher began."""

    def __init__(self, state: DispatcherState, *, max_workers: int, begun_at: float) -> None:
        self._state = state
        self._max_workers = max_workers
        self._begun_at = begun_at
        self._observed_at = begun_at
        self._worker_heard_at: float | None = None

    def observe(self, now: float) -> None:
        """Look at open tasks and workers, once a second."""
        if now - self._observed_at < _observed_every_seconds:
            return
        self._observed_at = now
        for task in self._state.credits.newest_first():
            if task.seen_at is not None:
                break  # and so are all that were issued before it
            task.seen_at = now
        heard = [worker.last_heartbeat for worker in self._state.workers.workers.values() if worker.status]
        if heard:
            self._worker_heard_at = max(heard)

    def cause(self, now: float, seconds_without_contact: float = 0.0) -> Cause:
        """What is waited for, after `seconds_without_contact` in which the broker did not answer."""
        if seconds_without_contact > _broker_silent_seconds:
            return Cause(
                what=f"the broker does not answer since {seconds_without_contact:.0f} s",
                remedy="start it again, or see in its log what it does",
                waits_on="broker",
            )
        return self._trainer(now) or self._workers(now) or self._verdicts()

    def _trainer(self, now: float) -> Cause | None:
        state, version = self._state, self._state.ledger.version
        heard_at = self._begun_at if state.trainer_heard_at is None else state.trainer_heard_at
        if state.trainer is None or now - heard_at > silent_seconds:
            return absent_role(RunRole.TRAINER, now - heard_at, was_heard=state.trainer_heard_at is not None)
        if acts_itself(state.trainer, version):
            return _said_by_trainer(words_of(state.trainer, version))
        if not state.ledger.has_genesis:
            return _said_by_trainer("the trainer has not begun the run; look into its log")
        return None

    def _workers(self, now: float) -> Cause | None:
        known = self._state.workers.workers.values()
        live = [worker for worker in known if worker.status is not None and not worker.is_expired]
        if not live:
            heard_at = self._begun_at if self._worker_heard_at is None else self._worker_heard_at
            return self._with_failure(absent_workers(now - heard_at))
        open_tasks = [task for task in self._state.credits.all() if not task.is_cancelled]
        if open_tasks:
            return self._under_way(open_tasks, now)
        return self._nothing_under_way(live)

    def _under_way(self, open_tasks: Sequence[OpenTask], now: float) -> Cause:
        """The worker with the oldest task, its training tasks first: steps are made of them."""
        oldest = min(
            open_tasks,
            key=lambda task: (
                task.task.kind is not Kind.TRAINING,
                now if task.seen_at is None else task.seen_at,
            ),
        )
        seconds = 0.0 if oldest.seen_at is None else now - oldest.seen_at
        mine = [
            task
            for task in open_tasks
            if task.worker_id == oldest.worker_id and task.task.kind is oldest.task.kind
        ]
        others = {task.worker_id for task in open_tasks} - {oldest.worker_id}
        worker = self._state.workers.workers.get(oldest.worker_id)
        trouble, remedy = _trouble(worker, now)
        also = f" ({len(others)} other worker(s) hold tasks, too)" if others else ""
        return Cause(
            what=f"worker {_name(oldest.worker_id)} has {_tasks(mine)} for {seconds:.0f} s{trouble}{also}",
            remedy=remedy,
            waits_on="worker",
        )

    def _nothing_under_way(self, live: Sequence[KnownWorker]) -> Cause | None:
        failing = [worker for worker in live if _cannot_load(worker)]
        if failing:
            return _worker_cause(
                f"no task is under way, and worker {_name(failing[0].worker_id)} {_failure(failing[0].status)}",
                _load_remedy,
            )
        granted = [worker for worker in live if worker.grant is not None]
        if not granted:
            return _worker_cause(
                f"worker {_name(live[0].worker_id)} has no grant: {self._max_workers} can have one",
                "end workers that are too many, or begin a run with a higher broker.max_workers",
            )
        busy = [worker for worker in granted if _state_of(worker) is not WorkerState.SERVING]
        if len(busy) == len(granted):
            return self._with_failure(
                _worker_cause(
                    f"no worker serves: {_name(busy[0].worker_id)} is {_state_of(busy[0])}",
                    "wait for its engine, or see in its log what it does",
                )
            )
        version = self._state.ledger.version
        served = [worker.status.served_version for worker in granted if worker.status is not None]
        if all(each is None or each < version for each in served):
            return _worker_cause(
                f"no worker serves version {version}: {_name(granted[0].worker_id)} serves {served[0]}",
                "see in its log why it does not load the newest weights",
            )
        slots = sum(candidate.num_slots for candidate in self._state.workers.candidates(self._state.credits))
        if not slots:
            return _worker_cause(
                "no slot is free at any worker", "start more workers, or see in their logs what they do"
            )
        return None

    def _with_failure(self, cause: Cause) -> Cause:
        """With what a worker said last of a load that failed: it leaves after a few, and is started again."""
        failed = self._state.load_failure
        if failed is None:
            return cause
        what = f"{cause.what}, and worker {_name(failed.worker_id)} {_failure(failed)}"
        return Cause(what=what, remedy=_load_remedy, waits_on=cause.waits_on)

    def _verdicts(self) -> Cause:
        words = words_of(self._state.trainer, self._state.ledger.version)
        num_open = self._state.groups.num_open
        what = f"no task is under way, and {num_open} open group(s) wait for the trainer's verdicts"
        return _said_by_trainer(
            f"{what}; the trainer: {words}" if words else f"{what}; look into the trainer's log"
        )


def _trouble(worker: KnownWorker | None, now: float) -> tuple[str, str]:
    """What is known to be wrong with a worker that holds tasks, and what helps."""
    restart = "look into its log; if it hangs, end it: its tasks go to other workers"
    if worker is None or worker.status is None:
        return " and was not heard yet", restart
    if _cannot_load(worker):
        return f" and {_failure(worker.status)}", _load_remedy
    if now - worker.last_heartbeat > _worker_silent_seconds:
        return f" and is silent for {now - worker.last_heartbeat:.0f} s", restart
    if _state_of(worker) is not WorkerState.SERVING:
        return f" and is {_state_of(worker)}", restart
    return "", restart


_load_remedy = (
    "see weights.uri and the file's store from that machine; a worker tries again a few times, then ends"
)


def _cannot_load(worker: KnownWorker) -> bool:
    """Whether its last attempt failed, whatever it serves: a worker has no other error before it leaves."""
    return worker.status is not None and worker.status.error is not None


def _failure(status: WorkerStatus | None) -> str:
    error = (None if status is None else status.error) or "no reason given"
    return f"cannot load weights: {printable(error, limit=300)}"


def _tasks(tasks: Sequence[OpenTask]) -> str:
    if tasks[0].task.kind is not Kind.TRAINING:
        first = tasks[0].task
        return f"{len(tasks)} prompt(s) of evaluation {first.evaluation} of version {first.pinned_version}"
    groups = sorted({task.task.group_id for task in tasks})
    named = ", ".join(map(str, groups[:_most_named])) + (" ..." if len(groups) > _most_named else "")
    return f"{len(tasks)} task(s) of group(s) {named}"


def _state_of(worker: KnownWorker) -> WorkerState | None:
    return None if worker.status is None else worker.status.state


def _name(worker_id: str) -> str:
    return printable(worker_id, limit=100)


def _worker_cause(what: str, remedy: str) -> Cause:
    return Cause(what=what, remedy=remedy, waits_on="worker")


def _said_by_trainer(sentence: str) -> Cause:
    return Cause(what=printable(sentence, limit=600), waits_on="trainer")
