"""Complete groups, and which of them make the next batch, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.rules.freshness import lag_bound, lag_quota

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rollog.rules.headers import SampleHeader
    from rollog.settings.groups import GroupConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyGroup:
    """A complete group that may be trained: its first G fresh members in order of replica."""

    group_id: int
    members: tuple[SampleHeader, ...]
    lag: int


def lag_of(header: SampleHeader, version: int) -> int:
    """How many versions the sample's oldest segment is behind `version`."""
    assert header.first_version is not None
    return version - header.first_version


def ready_group(group: int, members: Sequence[SampleHeader], version: int) -> ReadyGroup:
    """The group with these members at `version`."""
    # Training order is by replica: the order of arrival would make a replay depend on the network.
    in_order = tuple(sorted(members, key=lambda header: header.replica))
    return ReadyGroup(
        group_id=group, members=in_order, lag=max(lag_of(header, version) for header in in_order)
    )


def in_training_order(
    ready: Iterable[ReadyGroup], groups: GroupConfig, is_protected: Callable[[int], bool]
) -> list[ReadyGroup]:
    """Protected groups first: they have waited longest, and others may be waiting for them."""
    sign = -1 if groups.batch_order == "oldest" else 1
    return sorted(
        ready, key=lambda group: (not is_protected(group.group_id), sign * group.lag, group.group_id)
    )


def within_quota(
    ordered: Iterable[ReadyGroup], groups: GroupConfig, alpha: float
) -> tuple[list[ReadyGroup], list[ReadyGroup]]:
    """The first B groups, and those met on the way that have the largest lag and no place in the quota.

    With a fractional alpha the quota bounds how many groups of the largest lag a batch has. At the next version the lag
    of the others is over the bound: waiting for another batch cannot help them.
    """
    quota, bound = lag_quota(alpha, groups.groups_per_batch), lag_bound(alpha)
    batch: list[ReadyGroup] = []
    beyond: list[ReadyGroup] = []
    for group in ordered:
        if len(batch) == groups.groups_per_batch:
            break
        if quota is not None and group.lag == bound:
            if quota == 0:
                beyond.append(group)
                continue
            quota -= 1
        batch.append(group)
    return batch, beyond
