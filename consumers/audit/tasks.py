"""The records of `tasks`, decoded once for all checks that ask for them, and told apart by the fences before them."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from consumers.audit.findings import Place
from schemas import Fence, Kind, RolloutTask, TaskBatch
from schemas.codec import SchemaError, decode, encode

if TYPE_CHECKING:
    from consumers.audit.issues import Reissues
    from consumers.audit.orders import Orders
    from rollog.kernel.broker.ports import Record


@dataclass(slots=True)
class TasksPass:
    """Takes in the records of `tasks`, in order within each partition.

    A task is void behind a fence of a higher epoch, if a dispatcher of that epoch took the run over.
    """

    reissues: Reissues
    orders: Orders
    num_unreadable: int = 0
    _fences: dict[int, int] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """One record."""
        value = record.value or b""
        try:
            decoded = decode(value)
        except SchemaError:
            self.num_unreadable += 1
            return
        if isinstance(decoded, Fence) and self.orders.may_be_epoch(decoded.epoch):
            self._fences[record.partition] = max(self._fences.get(record.partition, 0), decoded.epoch)
        if isinstance(decoded, RolloutTask):
            self._add_task(decoded, value, record)
        elif isinstance(decoded, TaskBatch):
            for task in decoded.tasks:
                self._add_task(task, encode(task), record)

    def _add_task(self, task: RolloutTask, value: bytes, record: Record) -> None:
        """One task, with the bytes that it has as a record of its own."""
        if task.kind is not Kind.TRAINING:
            return
        place = Place(record.topic, record.partition, record.offset)
        is_void = task.epoch < self._fences.get(record.partition, 0)
        self.orders.task(task, place, is_void=is_void)
        if task.attempt != 0 and not is_void:
            is_fenced = record.partition in self._fences
            self.reissues.task(task, sha256(value).digest(), place, is_fenced=is_fenced)
