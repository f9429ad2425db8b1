"""I17: which records of `rewards` could count when the trainer read them, worked out from the ledger anew.

Each ledger record says up to where rewards were read before it. So what stands from one position to the next was read
when the first of the two records was the newest: with the groups that were closed then, and alphas up to then.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumers.audit.config import AuditConfig
    from schemas import LedgerRecord

_most_bytes_of_replica = 1 << 17
_bytes_beside_value = 1 << 10
_queues_within_reach = 4


@dataclass(slots=True)
class ReadingOfRewards:
    """Takes in the records of the ledger, and says of an offset in `rewards` how things stood when it was read."""

    _positions: list[int] = field(default_factory=list)
    _newest_closed: list[int] = field(default_factory=list)
    _largest_alpha: list[float] = field(default_factory=list)

    def add(self, record: LedgerRecord) -> None:
        """The next record. A position that goes back is found elsewhere, and is taken as if it stood still."""
        closed = [group.group_id for group in record.closed_groups]
        self._positions.append(max([record.reward_position, *self._positions[-1:]]))
        self._newest_closed.append(max([-1, *closed, *self._newest_closed[-1:]]))
        self._largest_alpha.append(max([record.alpha, *self._largest_alpha[-1:]]))

    def entry(self, offset: int) -> int:
        """Index of the ledger record that was the newest one when this offset was read; -1 for none."""
        return bisect_right(self._positions, offset) - 1

    def end_of_reach(self, offset: int, config: AuditConfig) -> float:
        """The first group for which a reward at this offset came too early to count; infinite if that is not known."""
        index, batch, redundant = self.entry(offset), config.groups_per_batch, config.redundant_groups
        if index < 0 or batch is None or redundant is None:
            return math.inf
        queue = batch * (1 + math.ceil(self._largest_alpha[index])) + redundant
        return self._newest_closed[index] + 1 + _queues_within_reach * queue


@dataclass(slots=True)
class RoomOfGroups:
    """How many bytes of rewards are taken in of each group; behind the first that found no room nothing is."""

    _used: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    _full: set[int] = field(default_factory=set)

    def takes(self, group: int, value: bytes, num_replicas: int | None) -> bool:
        """Whether there is room for this one, which then takes it."""
        if num_replicas is None:
            return True
        used = self._used[group] + len(value) + _bytes_beside_value
        if used > num_replicas * _most_bytes_of_replica:
            self._full.add(group)
        if group in self._full:
            return False
        self._used[group] = used
        return True
