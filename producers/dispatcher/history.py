"""The log as a dispatcher reads it before samples: small topics, and which records of `tasks` are tasks to wait for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.rules.number_set import NumberSet
from rollog.rules.reading import control_record
from rollog.rules.task_names import sequence_of
from schemas import DeadLetter, Fence, tasks_in
from schemas.codec import SchemaError, decode, decode_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from producers.dispatcher.state import DispatcherState
    from rollog.kernel.broker.ports import Record
    from rollog.kernel.broker.topics import RunTopics
    from schemas import RolloutTask


@dataclass(slots=True)
class SmallTopics:
    """What is read from the beginning at every start: `control`, the newest record of each worker, dead letters.

    These grow with starts and joins, not with samples. Of dead letters only places count that may be read again: those
    of the dispatcher's own topics.
    """

    topics: RunTopics
    control: list[Record] = field(default_factory=list)
    workers: dict[bytes | None, Record] = field(default_factory=dict)
    dead_lettered: set[tuple[str, int, int]] = field(default_factory=set)

    def add(self, record: Record) -> None:
        """Take in one record; of each worker only the newest is kept."""
        if record.topic == self.topics.control:
            self.control.append(record)
        elif record.topic == self.topics.workers:
            self.workers[record.key] = record
        else:
            self._add_dead_letter(record)

    def _add_dead_letter(self, record: Record) -> None:
        try:
            letter = decode_as(DeadLetter, record.value or b"")
        except SchemaError:
            return  # it names no record that is set aside
        if letter.topic in {self.topics.control, self.topics.workers, self.topics.evaluations}:
            self.dead_lettered.add((letter.topic, letter.partition, letter.offset))

    def fold_control(self, state: DispatcherState, now: float) -> None:
        """Fold `control` into the state."""
        for record in self.control:
            decoded = control_record(record)
            if decoded is not None:
                state.on_control(decoded, now)

    def fold_workers(self, state: DispatcherState) -> None:
        """Note who has left. Heartbeats of the past prove nothing: a worker is a candidate after its next one."""
        for record in self.workers.values():
            if record.value is None:
                state.on_tombstone((record.key or b"").decode(errors="replace"))


@dataclass(slots=True)
class ValidTasks:
    """Which records of `tasks` are tasks to wait for; its caller passes them in the order of each partition.

    `epoch` is that of the dispatcher that takes over; a fence of a higher one is nobody's and voids nothing. Tasks that
    `is_issued` does not recognize, or whose id was read before, are nobody's either. `known` is the id (epoch,
    sequence) of the last task of which a snapshot tells what became of it and of all before: these are not taken again.
    """

    epoch: int
    is_issued: Callable[[RolloutTask], bool]
    known: tuple[int, int] = (0, 0)
    _taken: defaultdict[int, NumberSet] = field(default_factory=lambda: defaultdict(NumberSet))
    _fences: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self._fences.default_factory = lambda: self.known[0]

    def read(self, record: Record) -> Iterator[RolloutTask]:
        """The tasks in a record that are valid, in order."""
        try:
            decoded = decode(record.value or b"")
        except SchemaError:
            return  # the worker that reads it sets it aside
        match decoded:
            case Fence(epoch=epoch) if epoch <= self.epoch:
                self._fences[record.partition] = max(self._fences[record.partition], epoch)
            case _:
                for task in tasks_in(decoded):
                    if task.epoch >= self._fences[record.partition] and self._is_new(task):
                        yield task

    def _is_new(self, task: RolloutTask) -> bool:
        """Anybody may be able to write here; the first record of an id is the one a worker takes."""
        if not self.is_issued(task):
            return False
        epoch, sequence = sequence_of(task.task_id)
        if (epoch, sequence) <= self.known or sequence in self._taken[epoch]:
            return False
        self._taken[epoch].add(sequence)
        return True


def worker_of(task: RolloutTask, state: DispatcherState) -> str:
    """The worker that a task's grant was given to; empty where the log knows no such grant."""
    grant = state.control.grants.get(task.grant_id)
    return "" if grant is None else grant.worker_id
