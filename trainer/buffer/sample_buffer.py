"""The trainer's sample buffer: samples read and not yet disposed of, the groups they form, the batch they make.

A state machine without Kafka and clock. The caller adds headers as they arrive, asks for a batch, and reports the
ledger record that was committed. In between every sample is a fresh candidate or has a pending verdict.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING

from rollog.rules.freshness import lag_bound, lag_quota, newest_version_while_protected
from rollog.rules.limits import is_exhausted
from rollog.rules.members import facts_of_group, is_protected
from rollog.rules.reasons import (
    aged_surplus,
    cancelled,
    closed_short,
    group_closed,
    last_batch,
    over_lag_bound,
    over_lag_quota,
    redundant_group,
    run_closed,
    spare,
    timed_out,
    untrainable,
)
from rollog.rules.verdicts import current_verdict
from schemas import ClosedGroup, Disposition, Verdict
from trainer.buffer.verdicts import verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rollog.rules.headers import SampleHeader
    from rollog.rules.ledger_state import LedgerState
    from rollog.rules.members import Ending, GroupFacts
    from rollog.settings.groups import FreshnessConfig, GroupConfig
    from schemas import LedgerRecord

Place = tuple[int, int]

_stale_by_age = frozenset({(Disposition.STALE, over_lag_bound), (Disposition.STALE, cancelled)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyGroup:
    """A complete group that may be trained: its first G fresh members in order of replica."""

    group_id: int
    members: tuple[SampleHeader, ...]
    lag: int


@dataclass(slots=True)
class _Pending:
    """Verdicts not yet in the ledger."""

    verdicts: dict[Place, Verdict] = field(default_factory=dict)
    closed: dict[int, Disposition] = field(default_factory=dict)
    endings: defaultdict[int, list[Ending]] = field(default_factory=lambda: defaultdict(list))

    def add(self, verdict: Verdict) -> None:
        self.verdicts[(verdict.partition, verdict.offset)] = verdict
        self.endings[verdict.group_id].append((verdict.replica, verdict.disposition))


@dataclass(slots=True)
class _Hold:
    """How long protected replicas have held up training (once per group and replica)."""

    since: dict[tuple[int, int], float] = field(default_factory=dict)
    waits: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))


class SampleBuffer:
    """Judges samples against the ledger and assembles batches (PROTOCOL: trainer, freshness, dispositions).

    It holds the header of every sample that was read and is not disposed of; nobody else keeps one.

    | a sample is | from | until |
    | --- | --- | --- |
    | candidate | it arrives fresh | its group is in a batch, or it gets a pending verdict |
    | pending | the ledger, its group's end or the quota decides about it | the record with its verdict is committed |
    | released | that commit; `committed` returns its header for the last time | - |

    | a group is | from | until |
    | --- | --- | --- |
    | open | its first sample | it is complete or is closed |
    | ready | G replicas are fresh and no filter refuses them | it is trained, or open again: a member went stale |
    | pending close | it is filtered, too many replicas are exhausted, or it timed out | the next record closes it |

    Example with B = 2 groups of G = 2, alpha 1, version 3 (fresh: begun under version 2 or 3). Group 7 has replicas 0
    and 1 of version 2, rewards 0 and 1: ready, lag 1. Group 8 has both of version 3, rewards 1 and 1: equal rewards, so
    it is pending close, filtered. Group 9 has replica 0 of version 1: stale, pending. Group 10 has two of version 3,
    rewards 0 and 1: ready, lag 0. The batch is groups 7 and 10, oldest first. The step record trains their four
    samples, filters two of group 8 and finds one of group 9 stale; it closes groups 7, 8 and 10. Its commit makes
    version 4, the buffer is empty, and group 9, still open, waits for another attempt at replica 0.
    """

    def __init__(self, ledger: LedgerState, groups: GroupConfig, freshness: FreshnessConfig) -> None:
        self._ledger = ledger
        self._groups = groups
        self._freshness = freshness
        self._headers: dict[Place, SampleHeader] = {}
        self._candidates: defaultdict[int, set[Place]] = defaultdict(set)
        self._ready: dict[int, ReadyGroup] = {}
        self._pending = _Pending()
        self._hold = _Hold()
        self._changed: set[int] = set()
        self._surplus: set[int] = set()
        self._begun: dict[int, float] = {}
        self._oldest_redundant = (-1, -1)
        """Number of closed groups when it was worked out, and the id from which on groups are redundant."""

    def add(self, header: SampleHeader) -> None:
        """Take in one record; those that already have their disposition are ignored."""
        if self._ledger.is_disposed(*header.place) or header.place in self._headers:
            return
        self._headers[header.place] = header
        self._judge(header)

    @property
    def has_pending(self) -> bool:
        """Whether there are verdicts or closed groups to publish."""
        self._close_changed_groups()
        return bool(self._pending.verdicts or self._pending.closed)

    @property
    def num_ready(self) -> int:
        """Complete groups that pass."""
        self._close_changed_groups()
        return len(self._ready)

    @property
    def undisposed(self) -> frozenset[Place]:
        """Places of all samples read that the ledger does not know yet."""
        return frozenset(self._headers)

    def next_batch(
        self, now_seconds: float, last_group_id: int | None = None, *, train_short: bool = True
    ) -> tuple[ReadyGroup, ...] | None:
        """The groups of the next step, in training order, or None while there is no full batch.

        With `last_group_id` (the dataset ended there), what is complete is trained as a short batch once no
        other group can become complete, or closed incomplete unless `train_short`. None is also returned while a
        protected group holds training up.
        """
        self._close_changed_groups()
        self._close_overdue(now_seconds)
        ordered = self._in_training_order()
        batch = self._within_quota(ordered)
        if len(batch) < self._groups.groups_per_batch:
            # A short batch is the run's last: while any group can still become complete, it is not.
            if last_group_id is None or not batch or not self.has_every_group(last_group_id):
                return None
            if not train_short:
                self._drop_ready()
                return None
        # Asked last, and only with a batch in hand: the time a protected group may hold up runs from here on.
        if self._is_held(now_seconds, {group.group_id for group in batch}):
            return None
        return tuple(batch)

    def has_every_group(self, last_group_id: int) -> bool:
        """Whether every group up to `last_group_id` is closed or complete."""
        self._close_changed_groups()
        closed = self._ledger.closed_groups.keys() | self._pending.closed.keys()
        return all(group in closed or group in self._ready for group in range(last_group_id + 1))

    def verdicts_for(
        self, batch: Sequence[ReadyGroup] = ()
    ) -> tuple[tuple[Verdict, ...], tuple[ClosedGroup, ...]]:
        """Everything the next ledger record publishes: the batch in training order, then all pending verdicts."""
        self._close_changed_groups()
        trained = {
            header.place: verdict_of(header, Disposition.TRAINED, version=self._ledger.version)
            for group in batch
            for header in group.members
        }
        others = dict(self._pending.verdicts)
        for group in batch:
            others.update(self._spare_verdicts(group, trained))
        closed = self._pending.closed | {group.group_id: Disposition.TRAINED for group in batch}
        return (
            (*trained.values(), *(others[place] for place in sorted(others))),
            tuple(
                ClosedGroup(
                    group_id=group_id, outcome=outcome, protected_waits=self._hold.waits.get(group_id, 0)
                )
                for group_id, outcome in sorted(closed.items())
            ),
        )

    def close_untrainable(self, group: int) -> None:
        """Close a complete group that training fails on."""
        self._ready.pop(group, None)
        self._end_group(group, Disposition.INCOMPLETE, {}, untrainable)

    def close_all(self, reason: str = run_closed) -> None:
        """Judge whatever is still a candidate as incomplete: the run ends."""
        self._close_changed_groups()
        for header in list(self._headers.values()):
            if header.place not in self._pending.verdicts:
                self._decide(header, Disposition.INCOMPLETE, reason)
        self._ready.clear()
        self._candidates.clear()

    def committed(self, record: LedgerRecord) -> list[tuple[Verdict, SampleHeader]]:
        """Release what a committed record, folded into the ledger already, disposed of; judge the others again.

        Returns its verdicts with the headers they are about.
        """
        disposed = [
            (verdict, self._headers.pop((verdict.partition, verdict.offset))) for verdict in record.verdicts
        ]
        closed = {group.group_id for group in record.closed_groups}
        for group in closed:
            self._hold.waits.pop(group, None)
        self._hold.since = {key: since for key, since in self._hold.since.items() if key[0] not in closed}
        self._pending = _Pending()
        self._candidates.clear()
        # A group that was ready had to wait for its batch: going stale now is not the fault of its prompt.
        self._surplus = set(self._ready)
        self._ready.clear()
        # The version may be new, so every group is looked at again, those without an undisposed sample included.
        self._changed.update(group for group in self._ledger.tallies if group >= 0)
        for header in self._headers.values():
            self._judge(header)
        self._surplus.clear()
        return disposed

    def low_water_marks(self, positions: Sequence[int], disposed: Iterable[Verdict] = ()) -> tuple[int, ...]:
        """Per partition the smallest offset without a disposition once `disposed` is published.

        `positions` are the next offsets to read.
        """
        done = {(verdict.partition, verdict.offset) for verdict in disposed}
        marks = list(positions)
        for partition, offset in self._headers.keys() - done:
            marks[partition] = min(marks[partition], offset)
        return tuple(marks)

    def _judge(self, header: SampleHeader) -> None:
        group = header.group_id
        verdict = current_verdict(header, self._ledger)
        if verdict is None and group in self._pending.closed:
            verdict = (Disposition.REDUNDANT, group_closed)
        if verdict is None:
            self._candidates[group].add(header.place)
        elif verdict == (Disposition.STALE, over_lag_bound) and group in self._surplus:
            self._decide(header, Disposition.STALE, aged_surplus)
        elif verdict in _stale_by_age and self._is_redundant(group):
            self._decide(header, Disposition.STALE, redundant_group)
        else:
            self._decide(header, *verdict)
        if group >= 0:
            self._changed.add(group)

    def _is_redundant(self, group: int) -> bool:
        """Whether a group still is one of those ordered in excess: fewer later ones are closed than were.

        It lost the race that it was ordered for; that says nothing about how long it takes.
        """
        num_redundant = self._groups.redundant_groups
        if not num_redundant:
            return False
        if self._oldest_redundant[0] != len(self._ledger.closed_groups):
            latest = nlargest(num_redundant, self._ledger.closed_groups)
            oldest = latest[-1] if len(latest) == num_redundant else -1
            self._oldest_redundant = (len(self._ledger.closed_groups), oldest)
        return group >= self._oldest_redundant[1]

    def _decide(self, header: SampleHeader, disposition: Disposition, reason: str) -> None:
        self._pending.add(verdict_of(header, disposition, version=self._ledger.version, reason=reason))

    def _close_changed_groups(self) -> None:
        """Bring ready and pending up to date for every group something happened to."""
        while self._changed:
            group = self._changed.pop()
            self._ready.pop(group, None)
            if group in self._ledger.closed_groups or group in self._pending.closed:
                continue
            facts = self._facts(group)
            if facts.refused_as is not None:
                members = {header.place: Disposition.FILTERED for header in facts.members}
                self._end_group(group, Disposition.FILTERED, members, facts.refused_as)
            elif facts.is_complete:
                self._ready[group] = self._ready_group(group, facts.members)
            elif _closes_short(facts, self._groups, self._freshness):
                self._end_group(group, Disposition.INCOMPLETE, {}, closed_short)

    def _facts(self, group: int) -> GroupFacts:
        return facts_of_group(
            group,
            fresh=self._fresh(group),
            endings=self._pending.endings.get(group, ()),
            ledger=self._ledger,
            groups=self._groups,
            freshness=self._freshness,
        )

    def _fresh(self, group: int) -> list[SampleHeader]:
        return [self._headers[place] for place in self._candidates.get(group, ())]

    def _ready_group(self, group: int, members: Sequence[SampleHeader]) -> ReadyGroup:
        # Training order is by replica: the order of arrival would make a replay depend on the network.
        in_order = tuple(sorted(members, key=lambda header: header.replica))
        return ReadyGroup(group_id=group, members=in_order, lag=max(self._lag(header) for header in in_order))

    def _close_overdue(self, now_seconds: float) -> None:
        """End groups that stay incomplete for longer than they may."""
        timeout = self._groups.timeout_seconds
        if timeout is None:
            return
        closed = self._ledger.closed_groups.keys() | self._pending.closed.keys()
        # Groups of which everything failed so far have no candidate, but they have begun.
        begun = (
            {*self._candidates, *self._pending.endings, *self._ledger.tallies} - closed - self._ready.keys()
        )
        self._begun = {group: self._begun.get(group, now_seconds) for group in begun if group >= 0}
        for group, since in self._begun.items():
            if now_seconds - since >= timeout:
                self._end_group(group, Disposition.INCOMPLETE, {}, timed_out)

    def _drop_ready(self) -> None:
        """Close the complete groups that are too few for a batch."""
        for group in list(self._ready):
            self._end_group(group, Disposition.INCOMPLETE, {}, last_batch)
        self._ready.clear()

    def _end_group(
        self, group: int, outcome: Disposition, members: Mapping[Place, Disposition], reason: str
    ) -> None:
        """Close a group without training it; candidates outside `members` are incomplete or redundant."""
        others = Disposition.INCOMPLETE if outcome is Disposition.INCOMPLETE else Disposition.REDUNDANT
        for header in self._fresh(group):
            self._decide(header, members.get(header.place, others), reason)
        self._candidates.pop(group, None)
        self._pending.closed[group] = outcome

    def _lag(self, header: SampleHeader) -> int:
        assert header.first_version is not None
        return self._ledger.version - header.first_version

    def _in_training_order(self) -> list[ReadyGroup]:
        """Protected groups first: they have waited longest, and others may be waiting for them."""
        sign = -1 if self._groups.batch_order == "oldest" else 1
        return sorted(
            self._ready.values(),
            key=lambda group: (not self._is_protected(group.group_id), sign * group.lag, group.group_id),
        )

    def _within_quota(self, ordered: list[ReadyGroup]) -> list[ReadyGroup]:
        """The first B groups; with a fractional alpha those of the largest lag beyond the quota turn stale."""
        quota = lag_quota(self._ledger.alpha, self._groups.groups_per_batch)
        bound = lag_bound(self._ledger.alpha)
        batch: list[ReadyGroup] = []
        for group in ordered:
            if len(batch) == self._groups.groups_per_batch:
                break
            if quota is not None and group.lag == bound:
                if quota == 0:
                    # At the next version its lag is over the bound: waiting for another batch cannot help it.
                    self._turn_stale(group, bound)
                    continue
                quota -= 1
            batch.append(group)
        return batch

    def _turn_stale(self, group: ReadyGroup, bound: int) -> None:
        """Only members of the largest lag; the younger ones stay candidates for the same group."""
        for header in group.members:
            if self._lag(header) == bound:
                self._candidates[group.group_id].remove(header.place)
                self._decide(header, Disposition.STALE, over_lag_quota)
        self._changed.add(group.group_id)
        self._ready.pop(group.group_id, None)

    def _is_protected(self, group: int) -> bool:
        return is_protected(group, self._ledger, self._freshness)

    def _is_held(self, now_seconds: float, batch: set[int]) -> bool:
        """Whether a protected group that is not complete forbids the next version for now."""
        held = False
        for group, stale in self._ledger.stale_versions.items():
            if group in batch or group in self._ready or group in self._pending.closed:
                continue
            if not self._is_protected(group) or not self._would_outrun(group, stale):
                continue
            # Every replica, also once the answer is known: each has its own time, which begins at this look.
            waits = [self._waits_for(group, replica, now_seconds) for replica, _ in stale]
            held |= any(waits)
        return held

    def _waits_for(self, group: int, replica: int, now_seconds: float) -> bool:
        if (group, replica) not in self._hold.since:
            self._hold.since[(group, replica)] = now_seconds
            self._hold.waits[group] += 1
        return now_seconds - self._hold.since[(group, replica)] < self._freshness.patience_seconds

    def _would_outrun(self, group: int, stale: list[tuple[int, int]]) -> bool:
        """Whether the next version would make stale what the group has, or has begun since it is protected.

        Its new attempts begin with the version at which it became protected, or a later one.
        """
        versions = [version for _, version in stale[self._freshness.protect_after - 1 :][:1]]
        versions += [
            header.first_version for header in self._fresh(group) if header.first_version is not None
        ]
        return self._ledger.version + 1 > newest_version_while_protected(min(versions), self._ledger.alpha)

    def _spare_verdicts(self, group: ReadyGroup, trained: Mapping[Place, Verdict]) -> dict[Place, Verdict]:
        """Verdicts on samples of a batch's group that are not trained."""
        replicas = {header.replica for header in group.members}
        return {
            header.place: verdict_of(
                header,
                Disposition.DUPLICATE if header.replica in replicas else Disposition.REDUNDANT,
                version=self._ledger.version,
                reason=spare,
            )
            for header in self._fresh(group.group_id)
            if header.place not in trained
        }


def _closes_short(facts: GroupFacts, groups: GroupConfig, freshness: FreshnessConfig) -> bool:
    """Whether fewer than `group_size` replicas of a group can still be fresh."""
    num_exhausted = sum(
        replica in facts.tallies
        and replica not in facts.fresh_replicas
        and is_exhausted(facts.tallies[replica], groups, freshness)
        for replica in range(groups.num_replicas)
    )
    return groups.num_replicas - num_exhausted < groups.group_size
