"""What a group's samples amount to while the ledger has not disposed of them.

The dispatcher asks which attempts a group lacks and whether it will be filtered, the trainer whether to train, filter
or close it. Both ask here, so they can differ only in how far they have read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.rules.filtering import filter_reason
from rollog.rules.ledger_state import tally_verdict
from rollog.rules.limits import ReplicaTally
from rollog.rules.verdicts import current_verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rollog.rules.headers import SampleHeader
    from rollog.rules.ledger_state import LedgerState
    from rollog.settings.groups import FreshnessConfig, GroupConfig
    from schemas import Disposition

Ending = tuple[int, "Disposition"]
"""The replica of an attempt that is not a candidate, and the disposition it has or will get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What the ledger and the undisposed samples say of one open group.

    `members` are the fresh samples that count, in order of arrival: the first of each replica, at most G of them.
    `fresh_replicas` are all replicas with a fresh sample, those beyond the first G and those that wait for a reward
    included. `tallies` count how the
    other attempts at each replica ended, in the ledger and since. `refused_as` is the filter that a complete group does
    not pass.

    Example with G = 2 and one redundant replica, at version 3 with alpha 1. Offsets 10 to 14 of the partition hold
    replica 2 (version 1), replica 1 (version 3), replica 1 again (version 3), a failure of replica 0, replica 0
    (version 2). The first is stale: lag 2. Members are offsets 11 and 14, the group is complete, and the tallies say
    that replica 2 was stale once and replica 0 failed once.
    """

    members: tuple[SampleHeader, ...]
    fresh_replicas: frozenset[int]
    tallies: Mapping[int, ReplicaTally]
    is_complete: bool
    is_protected: bool
    refused_as: str | None


def facts_of_group(
    group_id: int,
    *,
    fresh: Iterable[SampleHeader],
    endings: Iterable[Ending],
    ledger: LedgerState,
    groups: GroupConfig,
    freshness: FreshnessConfig,
    waiting: Iterable[int] = (),
) -> GroupFacts:
    """What becomes of an open group with these fresh samples and these attempts that are none, all undisposed.

    `waiting` are replicas with a fresh sample that has no reward yet: it is no member.
    """
    first: dict[int, SampleHeader] = {}
    for header in sorted(fresh, key=lambda header: header.place):
        # The first one counts, not the best: choosing among attempts at a replica would bias what is trained.
        first.setdefault(header.replica, header)
    members = tuple(first.values())[: groups.group_size]
    is_complete = len(members) == groups.group_size
    return GroupFacts(
        members=members,
        fresh_replicas=frozenset((*first, *waiting)),
        tallies=_tallies(group_id, endings, ledger),
        is_complete=is_complete,
        is_protected=is_protected(group_id, ledger, freshness),
        refused_as=filter_reason(members, groups) if is_complete else None,
    )


def fresh_and_ended(
    headers: Iterable[SampleHeader], ledger: LedgerState
) -> tuple[list[SampleHeader], list[Ending]]:
    """Undisposed samples as the ledger judges them now: the fresh candidates, and how the others end.

    One that waits for its reward is neither.
    """
    fresh: list[SampleHeader] = []
    endings: list[Ending] = []
    for header in headers:
        verdict = current_verdict(header, ledger)
        if verdict is None:
            if not header.is_waiting:
                fresh.append(header)
        else:
            endings.append((header.replica, verdict[0]))
    return fresh, endings


def is_protected(group_id: int, ledger: LedgerState, freshness: FreshnessConfig) -> bool:
    """Whether a group went stale so often that training waits for it now."""
    return len(ledger.stale_versions.get(group_id, ())) >= freshness.protect_after


def _tallies(group_id: int, endings: Iterable[Ending], ledger: LedgerState) -> dict[int, ReplicaTally]:
    # Copies: adding to the ledger's own would count an ending twice once its verdict is folded.
    tallies = {replica: tally + ReplicaTally() for replica, tally in ledger.tallies.get(group_id, {}).items()}
    for replica, disposition in endings:
        tally_verdict(tallies.setdefault(replica, ReplicaTally()), disposition)
    return tallies
