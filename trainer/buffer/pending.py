"""Verdicts that are decided and not yet in the ledger."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollog.rules.members import Ending
    from schemas import Disposition, Verdict

Place = tuple[int, int]


@dataclass(slots=True)
class Pending:
    """What the next ledger record publishes: verdicts by place, outcomes of closed groups, and how attempts ended."""

    verdicts: dict[Place, Verdict] = field(default_factory=dict)
    closed: dict[int, Disposition] = field(default_factory=dict)
    endings: defaultdict[int, list[Ending]] = field(default_factory=lambda: defaultdict(list))

    def add(self, verdict: Verdict) -> None:
        """Decide about one sample."""
        self.verdicts[(verdict.partition, verdict.offset)] = verdict
        self.endings[verdict.group_id].append((verdict.replica, verdict.disposition))
