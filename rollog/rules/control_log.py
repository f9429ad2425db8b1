"""What of `control` counts: which epochs exist, which grants were given, and which records cannot be.

Anybody may be able to write there. A record that no dispatcher or trainer of the run can have written is named and
ignored, by dispatcher, workers and trainer alike: each folds the topic from its first record with `ControlLog`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemas import DatasetEnd, DispatcherEpoch, Grant, RunClosed, TrainerEpoch

if TYPE_CHECKING:
    from rollog.rules.reading import ControlRecord

_largest_offset = 1 << 62


@dataclass(slots=True)
class ControlLog:
    """The fold of `control`; `num_partitions` are those of `tasks`.

    | a record | counts if |
    | --- | --- |
    | `DispatcherEpoch`, `TrainerEpoch` | its epoch is the one after the newest of its kind |
    | any other | its epoch exists; of an older epoch it is void, because its writer was overtaken |
    | `Grant` | besides, its partition exists, and it repeats what its grant_id was given first |
    | `DatasetEnd` | besides, its last group is -1 or more |
    | `RunClosed` | its epoch exists, older or not: a run stays closed. Whoever leaves for it asks the ledger first |

    Example: after epochs 1 and 2 a grant of epoch 10^9 cannot be, one of epoch 1 is void, one of epoch 2 counts.
    """

    num_partitions: int
    epoch: int = 0
    """The newest dispatcher's; those of trainers are counted by themselves and void nothing."""
    trainer_epoch: int = 0
    grants: dict[str, Grant] = field(default_factory=dict)
    """By grant_id, as given first."""

    def refused(self, record: ControlRecord) -> str | None:
        """Why nobody of the run can have written this record here; None where one can."""
        if isinstance(record, DispatcherEpoch | TrainerEpoch):
            role, newest = (
                ("trainer", self.trainer_epoch)
                if isinstance(record, TrainerEpoch)
                else ("dispatcher", self.epoch)
            )
            if record.epoch == newest + 1:
                return None
            return f"a {role}'s epoch {record.epoch}, the one after {newest} is {newest + 1}"
        name = type(record).__name__
        if not 1 <= record.epoch <= self.epoch:
            return f"a {name} of epoch {record.epoch}; the epochs that exist are 1 to {self.epoch}"
        match record:
            case Grant():
                return self._refused_grant(record)
            case DatasetEnd() if record.last_group_id < -1:
                return f"a DatasetEnd after group {record.last_group_id}; groups count from 0"
        return None

    def add(self, record: ControlRecord) -> bool:
        """Fold the next record; whether it counts. What is refused changes nothing."""
        if self.refused(record) is not None:
            return False
        if isinstance(record, TrainerEpoch):
            self.trainer_epoch = record.epoch
            return True
        if record.epoch < self.epoch and not isinstance(record, RunClosed):
            return False
        match record:
            case DispatcherEpoch(epoch=epoch):
                self.epoch = epoch
            case Grant():
                self.grants.setdefault(record.grant_id, record)
        return True

    def _refused_grant(self, grant: Grant) -> str | None:
        if not 0 <= grant.partition < self.num_partitions:
            return f"a Grant of partition {grant.partition}; tasks has 0 to {self.num_partitions - 1}"
        if not 0 <= grant.start_offset < _largest_offset:
            return f"a Grant from offset {grant.start_offset} on; there is no such offset"
        first = self.grants.get(grant.grant_id)
        if first is not None and _place(first) != _place(grant):
            return f"grant {grant.grant_id} of worker {grant.worker_id}, was given to {first.worker_id} elsewhere"
        return None


def _place(grant: Grant) -> tuple[str, int, int]:
    return (grant.worker_id, grant.partition, grant.start_offset)
