"""Original offsets of a mirrored ledger, counted: what a mirror without an offset map can tell of `steps`.

One transaction holds one ledger record, in parts or whole, and ends with a marker. Transactions that were aborted, such
as that of a trainer that died inside its commit, took offsets too, and are in no mirror. A task tells of them: it names
the version that its dispatcher knew, and how far this had read `steps`. Every record of a later version stands there
or behind it.

    mirror      0: version 0   1: version 1   2: version 2
    counted     0              2              4             end 6
    a task      knows version 1 and has read up to 7
    so          0              2              7             end 9: two or more aborted records before version 2

Every offset is the smallest that all this allows; where no task tells, it may be too small by what was aborted. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class CountedSteps:
    """Takes in the records of a mirrored ledger in order, and what tasks name; `offsets` and `end` follow from both."""

    _records: list[tuple[int, bool]] = field(default_factory=list)
    """Version after each record, and whether a marker follows it."""
    _read_at: dict[int, int] = field(default_factory=dict)
    """How far `steps` had been read at most by a dispatcher that knew a version and no later one."""

    def add(self, version: int | None, *, ends_transaction: bool) -> None:
        """One record; `version` None for one that is no ledger record."""
        newest = self._records[-1][0] if self._records else -1
        self._records.append((newest if version is None else max(newest, version), ends_transaction))

    def read_at(self, version: int, position: int) -> None:
        """A dispatcher that knew `version` and no later one had read `steps` up to `position`."""
        self._read_at[version] = max(position, self._read_at.get(version, 0))

    @property
    def num_aborted(self) -> int:
        """Offsets that tasks show to have been taken by aborted transactions, at least."""
        return self._counted()[1] - len(self._records) - sum(ends for _, ends in self._records)

    @property
    def offsets(self) -> Sequence[int]:
        """The smallest that each record can have had, in order."""
        return self._counted()[0]

    @property
    def end(self) -> int:
        """Behind everything. What is read at a version that the mirror has not is left out: its ledger was cut."""
        return self._counted()[1]

    def _counted(self) -> tuple[list[int], int]:
        told = sorted(self._read_at.items())
        offsets: list[int] = []
        free = num_told = 0
        for version, ends_transaction in self._records:
            while num_told < len(told) and told[num_told][0] < version:
                free = max(free, told[num_told][1])
                num_told += 1
            offsets.append(free)
            free += 1 + ends_transaction
        newest = self._records[-1][0] if self._records else -1
        later = [position for version, position in told[num_told:] if version <= newest]
        return offsets, max([free, *later])
