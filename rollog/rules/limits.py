"""When no further attempt at a replica is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.settings.groups import StaleAction

if TYPE_CHECKING:
    from rollog.settings.groups import FreshnessConfig, GroupConfig


@dataclass(slots=True)
class ReplicaTally:
    """How often attempts at one (group, replica) ended in which way."""

    num_failed: int = 0
    num_lost: int = 0
    num_stale: int = 0

    def __add__(self, other: ReplicaTally) -> ReplicaTally:
        return ReplicaTally(
            self.num_failed + other.num_failed,
            self.num_lost + other.num_lost,
            self.num_stale + other.num_stale,
        )


def is_exhausted(tally: ReplicaTally, groups: GroupConfig, freshness: FreshnessConfig) -> bool:
    """Whether the attempts at a replica are used up.

    Failed, dead and unrewarded attempts share one limit, lost ones have their own; stale ones never count unless the
    configuration drops them.
    """
    return (
        tally.num_failed >= groups.max_attempts
        or tally.num_lost >= groups.max_lost
        or (freshness.action is StaleAction.DROP and tally.num_stale > 0)
    )
