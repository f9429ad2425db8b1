"""What a dispatcher keeps of samples of closed groups until it has read the tasks: that the attempt has ended."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.rules.number_set import NumberSet
from rollog.rules.task_names import is_task_id, sequence_of

if TYPE_CHECKING:
    from rollog.rules.headers import SampleHeader
    from schemas import RolloutTask


@dataclass(slots=True)
class EndedAttempts:
    """Replicas of training tasks that have a sample; `num_replicas` are those of a group.

    Nearly every task in the log of an old run has ended and is of a closed group: it need not be opened at all. Each
    takes a bit for every replica of a group, .2 to 2 bytes with up to 8 of them. Tasks are told apart by their numbers:
    a void task of an overtaken dispatcher may order the same attempt at the same replica as one of its successor. Of a
    sample that names a task of another group nothing is known here: it ends that task, if its group is closed as well.

    `newest_epoch` and `num_tasks`, as many as all partitions of `tasks` ever held, bound what a sample can name: forged
    numbers beyond them take no memory.

    Example: a sample of replica 1 names task 2.7. Of task 2.7 at replicas 0 and 1, replica 1 has ended.
    """

    num_replicas: int
    newest_epoch: int
    num_tasks: int
    _by_epoch: defaultdict[int, NumberSet] = field(default_factory=lambda: defaultdict(NumberSet))

    def add(self, header: SampleHeader) -> None:
        """Take in a sample of a closed group; one that names no task that can be is nobody's."""
        if is_task_id(header.task_id) and 0 <= header.replica < self.num_replicas:
            epoch, sequence = sequence_of(header.task_id)
            if 1 <= epoch <= self.newest_epoch and sequence <= self.num_tasks:
                self._by_epoch[epoch].add(self._number(sequence, header.replica))

    def of(self, task: RolloutTask) -> list[int]:
        """The replicas of a training task of a closed group that have ended."""
        epoch, sequence = sequence_of(task.task_id)
        ended = self._by_epoch.get(epoch)
        if ended is None:
            return []
        return [replica for replica in replicas_of(task) if self._number(sequence, replica) in ended]

    def _number(self, sequence: int, replica: int) -> int:
        return sequence * self.num_replicas + replica


def replicas_of(task: RolloutTask) -> range:
    """The replicas that a task orders."""
    return range(task.replica, task.replica + task.num_replicas)
