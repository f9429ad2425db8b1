"""Which groups are those ordered in excess, as far as the ledger tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollog.rules.ledger_state import LedgerState


@dataclass(slots=True)
class RedundantGroups:
    """A group is redundant while fewer later ones are closed than were ordered in excess.

    It lost the race that it was ordered for; that says nothing about how long it takes.
    """

    ledger: LedgerState
    num_redundant: int
    _oldest: tuple[int, int] = (-1, -1)
    """Number of closed groups when it was worked out, and the id from which on groups are redundant."""

    def includes(self, group: int) -> bool:
        """Whether `group` still is one of them."""
        if not self.num_redundant:
            return False
        closed = self.ledger.closed_groups
        if self._oldest[0] != len(closed):
            latest = closed.latest(self.num_redundant)
            oldest = latest[-1] if len(latest) == self.num_redundant else -1
            self._oldest = (len(closed), oldest)
        return group >= self._oldest[1]
