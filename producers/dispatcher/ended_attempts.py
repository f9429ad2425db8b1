"""What a dispatcher keeps of samples of closed groups until it has read the tasks: that the attempt has ended."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.rules.number_set import NumberSet
from schemas import Kind

if TYPE_CHECKING:
    from rollog.rules.headers import SampleHeader
    from schemas import RolloutTask


@dataclass(slots=True)
class EndedAttempts:
    """Attempts at replicas that have a sample, one bit each; `num_replicas` are those of a group.

    Nearly every task in the log of an old run has ended and is of a closed group: it need not be opened at all, so the
    memory of a start does not grow with them.

    Example: the first attempt at replica 1 of group 3 has a sample. Of a task of attempt 0 at replicas 0 and 1 of that
    group, replica 1 has ended.
    """

    num_replicas: int
    _by_attempt: defaultdict[int, NumberSet] = field(default_factory=lambda: defaultdict(NumberSet))

    def add(self, header: SampleHeader) -> None:
        """Take in a sample of a closed group; one that names no attempt that can be is nobody's."""
        if header.attempt >= 0 and 0 <= header.replica < self.num_replicas:
            self._by_attempt[header.attempt].add(self._number(header.group_id, header.replica))

    def of(self, task: RolloutTask) -> list[int]:
        """The replicas of a task that have ended."""
        ended = self._by_attempt.get(task.attempt)
        if ended is None or task.kind is not Kind.TRAINING:
            return []
        replicas = range(task.replica, task.replica + task.num_replicas)
        return [replica for replica in replicas if self._number(task.group_id, replica) in ended]

    def _number(self, group_id: int, replica: int) -> int:
        return group_id * self.num_replicas + replica
