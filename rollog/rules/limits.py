"""When a replica, and with it its group, is given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.settings.groups import StaleAction

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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


def is_given_up(tally: ReplicaTally, groups: GroupConfig, freshness: FreshnessConfig) -> bool:
    """Whether no further attempt at the replica is made.

    Failed and dead attempts share one limit, lost ones have their own; stale ones never count unless the
    configuration drops them.
    """
    return (
        tally.num_failed >= groups.max_attempts
        or tally.num_lost >= groups.max_lost
        or (freshness.action is StaleAction.DROP and tally.num_stale > 0)
    )


def closes_short(
    tallies: Mapping[int, ReplicaTally],
    replicas_with_fresh_sample: Collection[int],
    groups: GroupConfig,
    freshness: FreshnessConfig,
) -> bool:
    """Whether fewer than `group_size` replicas of a group can still be fresh."""
    gone = sum(
        replica in tallies
        and replica not in replicas_with_fresh_sample
        and is_given_up(tallies[replica], groups, freshness)
        for replica in range(groups.num_replicas)
    )
    return groups.num_replicas - gone < groups.group_size
