"""Up to which group rewards count: of groups that nobody can have ordered yet there are no samples to reward.

Pure. Rewards stand on a topic of their own, so the log does not say whether one was written before its task. What it
says is how far the ledger had come when one was read: each ledger record names the position up to which rewards were
read before it. So the answer is the same whoever reads, and whenever. The audit works it out by itself.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import astuple, dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rollog.settings.groups import GroupConfig
    from schemas import LedgerRecord

_admissions = 4
"""A dispatcher has at most twice as many groups open as alpha lets it make; as much again is room for ids left out."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far the ledger had come when rewards from an offset on were read.

    `next_group` is one above the highest group that it closed, `most_alpha` the largest alpha so far, rounded up.
    """

    offset: int = 0
    next_group: int = 0
    most_alpha: int = 0

    def end(self, groups: GroupConfig) -> int:
        """The first group that nobody can have ordered.

        Example: of groups up to 41 the highest is closed, alpha was never above 1, a batch has 8 groups and none are
        redundant. No dispatcher has more than 32 groups open, so group 106 = 42 + 4 * 16 is beyond reach.
        """
        in_queue = (1 + self.most_alpha) * groups.groups_per_batch + groups.redundant_groups
        return self.next_group + _admissions * in_queue


@dataclass(slots=True)
class RewardReach:
    """How far the ledger had come when each reward was read, as far back as a new trainer reads them again.

    Neither number of `Reached` ever falls, so a group that was within reach stays so. One entry for each record behind
    the mark that closed a higher group or raised alpha: as long as what is kept for an open group holds the mark.
    """

    _entries: list[Reached] = field(default_factory=lambda: [Reached()])

    def add(self, record: LedgerRecord) -> None:
        """One more ledger record: what stands behind its position is read when it is there."""
        last = self._entries[-1]
        reached = Reached(
            offset=record.reward_position,
            next_group=max([last.next_group, *(group.group_id + 1 for group in record.closed_groups)]),
            most_alpha=max(last.most_alpha, math.ceil(record.alpha)),
        )
        if (reached.next_group, reached.most_alpha) != (last.next_group, last.most_alpha):
            if reached.offset == last.offset:
                self._entries.pop()
            self._entries.append(reached)
        needed_from = bisect_right(self._entries, record.reward_mark, key=attrgetter("offset")) - 1
        del self._entries[: max(0, needed_from)]

    def at(self, offset: int) -> Reached:
        """As the reward at this offset, behind the newest mark, was or will be read."""
        index = bisect_right(self._entries, offset, key=attrgetter("offset")) - 1
        return self._entries[max(0, index)]

    def to_plain(self) -> list[list[int]]:
        """As JSON has it."""
        return [list(astuple(entry)) for entry in self._entries]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Self:
        """What `to_plain` gave. Raises ValueError or TypeError for anything else."""
        entries = [Reached(*map(int, entry)) for entry in plain]
        if not entries:
            raise ValueError("how far rewards reach is not said")
        return cls(entries)
