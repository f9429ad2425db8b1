"""The log as a dispatcher reads it when it takes a run over, and the state folded from it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.rules.reading import control_record, read_ledger_record
from schemas import DeadLetter, Fence, RolloutTask
from schemas.codec import SchemaError, decode, decode_as

if TYPE_CHECKING:
    from collections.abc import Callable

    from producers.dispatcher.state import DispatcherState
    from rollog.kernel.broker.ports import Record
    from rollog.kernel.broker.topics import RunTopics
    from schemas import Grant


@dataclass(slots=True)
class History:
    """What a take-over reads of the log before samples: small records, and tasks that no fence before them voids.

    `epoch` is that of the dispatcher that takes over; a fence of a higher one is nobody's and voids nothing. Tasks that
    `is_issued` does not recognize, or whose id was read before, are nobody's either.
    """

    epoch: int
    is_issued: Callable[[RolloutTask], bool]
    control: list[Record] = field(default_factory=list)
    steps: list[Record] = field(default_factory=list)
    tasks: list[tuple[RolloutTask, int]] = field(default_factory=list)
    workers: dict[bytes | None, Record] = field(default_factory=dict)
    dead_lettered: set[tuple[str, int, int]] = field(default_factory=set)
    _task_ids: set[str] = field(default_factory=set)
    _fences: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, record: Record, topics: RunTopics) -> None:
        """Take in one record; of each worker only the newest is kept."""
        if record.topic == topics.control:
            self.control.append(record)
        elif record.topic == topics.steps:
            self.steps.append(record)
        elif record.topic == topics.workers:
            self.workers[record.key] = record
        elif record.topic == topics.dead_letters:
            self._add_dead_letter(record)
        else:
            self._add_task(record)

    def _add_dead_letter(self, record: Record) -> None:
        try:
            letter = decode_as(DeadLetter, record.value or b"")
        except SchemaError:
            return  # it names no record that is set aside
        self.dead_lettered.add((letter.topic, letter.partition, letter.offset))

    def _add_task(self, record: Record) -> None:
        try:
            decoded = decode(record.value or b"")
        except SchemaError:
            return  # the worker that reads it sets it aside
        match decoded:
            case Fence(epoch=epoch) if epoch <= self.epoch:
                self._fences[record.partition] = max(self._fences[record.partition], epoch)
            case RolloutTask() as task if task.epoch >= self._fences[record.partition]:
                # Anybody may be able to write here; the first record of an id is the one a worker takes.
                if task.task_id not in self._task_ids and self.is_issued(task):
                    self._task_ids.add(task.task_id)
                    self.tasks.append((task, record.offset))


def rebuild(state: DispatcherState, history: History, now: float) -> dict[str, Grant]:
    """Fold a history into an empty state; returns the live grants by worker.

    Heartbeats of the past prove nothing: a worker is a candidate after its next heartbeat.
    """
    for record in history.control:
        decoded = control_record(record)
        if decoded is not None:
            state.on_control(decoded, now)
    for record in history.steps:
        state.on_ledger(*read_ledger_record(record))
    for task, offset in history.tasks:
        state.on_task(task, _worker_of(task, state), offset)
    for record in history.workers.values():
        if record.value is None:
            state.on_tombstone((record.key or b"").decode(errors="replace"))
    return {
        worker.worker_id: worker.grant
        for worker in state.workers.workers.values()
        if worker.grant is not None
    }


def _worker_of(task: RolloutTask, state: DispatcherState) -> str:
    grant = state.control.grants.get(task.grant_id)
    return "" if grant is None else grant.worker_id
