"""Records of the tasks partition: what they say, and whether that is something this run can ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas import SchemaError, tasks_in
from schemas.codec import decode

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Record as StoredRecord
    from schemas import RolloutTask
    from schemas.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """What the run's settings allow: partitions of `samples`, and rollouts that one task orders."""

    num_sample_partitions: int
    num_replicas: int

    def decoded(self, stored: StoredRecord) -> Record:
        """What a stored record holds. Raises SchemaError for nothing, and for a task beyond the limits.

        Of several tasks in a record all are refused with one: no dispatcher of the run writes such a record.
        """
        if stored.unread is not None:
            raise SchemaError(stored.unread.reason)
        record = decode(stored.value or b"")
        for task in tasks_in(record):
            self._check(task)
        return record

    def _check(self, task: RolloutTask) -> None:
        if task.sample_partition >= self.num_sample_partitions:
            raise SchemaError(
                f"task {task.task_id} wants its samples in partition {task.sample_partition}, the run has 0 to "
                f"{self.num_sample_partitions - 1}"
            )
        if task.num_replicas > self.num_replicas:
            raise SchemaError(
                f"task {task.task_id} orders {task.num_replicas} rollouts, a task of this run at most "
                f"{self.num_replicas}"
            )
