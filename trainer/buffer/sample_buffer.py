"""The trainer's window: samples read and not yet disposed of, the groups they form, the batch they make.

A state machine without Kafka and clock. The caller adds headers as they arrive, asks for a batch, and reports
the ledger record that was committed; in between every sample is a fresh candidate or has a pending verdict.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING

from rollog.rules.filtering import filter_reason
from rollog.rules.freshness import lag_bound, lag_quota, newest_version_while_protected
from rollog.rules.ledger_state import tally_verdict
from rollog.rules.limits import ReplicaTally, closes_short
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
)
from schemas import ClosedGroup, Disposition, Verdict
from trainer.buffer.verdicts import standing_verdict, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rollog.rules.headers import SampleHeader
    from rollog.rules.ledger_state import LedgerState
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
    tallies: defaultdict[int, defaultdict[int, ReplicaTally]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(ReplicaTally))
    )

    def add(self, verdict: Verdict) -> None:
        self.verdicts[(verdict.partition, verdict.offset)] = verdict
        tally_verdict(self.tallies[verdict.group_id][verdict.replica], verdict.disposition)


@dataclass(slots=True)
class _Hold:
    """How long protected replicas have held up training (once per group and replica)."""

    since: dict[tuple[int, int], float] = field(default_factory=dict)
    waits: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))


class SampleWindow:
    """Judges samples against the ledger and assembles batches (PROTOCOL: trainer, freshness, dispositions)."""

    def __init__(self, ledger: LedgerState, groups: GroupConfig, freshness: FreshnessConfig) -> None:
        self._ledger = ledger
        self._groups = groups
        self._freshness = freshness
        self._headers: dict[Place, SampleHeader] = {}
        self._candidates: defaultdict[int, dict[Place, SampleHeader]] = defaultdict(dict)
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
            if last_group_id is None or not batch or not self.is_exhausted(last_group_id):
                return None
            if not train_short:
                self._drop_ready()
                return None
        if self._is_held(now_seconds, {group.group_id for group in batch}):
            return None
        return tuple(batch)

    def is_exhausted(self, last_group_id: int) -> bool:
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
        rest = dict(self._pending.verdicts)
        for group in batch:
            rest.update(self._left_over(group, trained))
        closed = self._pending.closed | {group.group_id: Disposition.TRAINED for group in batch}
        return (
            (*trained.values(), *(rest[place] for place in sorted(rest))),
            tuple(
                ClosedGroup(
                    group_id=group_id, outcome=outcome, protected_waits=self._hold.waits.get(group_id, 0)
                )
                for group_id, outcome in sorted(closed.items())
            ),
        )

    def close_all(self, reason: str = run_closed) -> None:
        """Judge whatever is still a candidate as incomplete: the run ends."""
        self._close_changed_groups()
        for header in list(self._headers.values()):
            if header.place not in self._pending.verdicts:
                self._decide(header, Disposition.INCOMPLETE, reason)
        self._ready.clear()
        self._candidates.clear()

    def settled(self, record: LedgerRecord) -> None:
        """The record was committed and folded into the ledger: forget what it disposed of and judge the rest anew."""
        for verdict in record.verdicts:
            self._headers.pop((verdict.partition, verdict.offset), None)
        for group in record.closed_groups:
            self._hold.waits.pop(group.group_id, None)
        closed = {group.group_id for group in record.closed_groups}
        self._hold.since = {key: since for key, since in self._hold.since.items() if key[0] not in closed}
        self._pending = _Pending()
        self._candidates.clear()
        self._surplus = set(self._ready)
        self._ready.clear()
        self._changed.update(group for group in self._ledger.tallies if group >= 0)
        for header in self._headers.values():
            self._judge(header)
        self._surplus.clear()

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
        standing = standing_verdict(header, self._ledger)
        if standing is None and group in self._pending.closed:
            standing = (Disposition.REDUNDANT, group_closed)
        if standing is None:
            self._candidates[group][header.place] = header
        elif standing == (Disposition.STALE, over_lag_bound) and group in self._surplus:
            self._decide(header, Disposition.STALE, aged_surplus)
        elif standing in _stale_by_age and self._is_redundant(group):
            self._decide(header, Disposition.STALE, redundant_group)
        else:
            self._decide(header, *standing)
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
            first = self._first_fresh(group)
            if len(first) >= self._groups.group_size:
                self._complete(group, first[: self._groups.group_size])
            elif closes_short(
                self._tallies(group), {header.replica for header in first}, self._groups, self._freshness
            ):
                self._end_group(group, Disposition.INCOMPLETE, {}, closed_short)

    def _close_overdue(self, now_seconds: float) -> None:
        """End groups that stay incomplete for longer than they may."""
        timeout = self._groups.timeout_seconds
        if timeout is None:
            return
        closed = self._ledger.closed_groups.keys() | self._pending.closed.keys()
        begun = (
            {*self._candidates, *self._pending.tallies, *self._ledger.tallies} - closed - self._ready.keys()
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

    def _first_fresh(self, group: int) -> list[SampleHeader]:
        """The lowest fresh record of each replica, in order of arrival."""
        first: dict[int, SampleHeader] = {}
        for place in sorted(self._candidates.get(group, ())):
            header = self._candidates[group][place]
            first.setdefault(header.replica, header)
        return list(first.values())

    def _complete(self, group: int, members: list[SampleHeader]) -> None:
        reason = filter_reason(members, self._groups)
        if reason is not None:
            self._end_group(
                group,
                Disposition.FILTERED,
                {header.place: Disposition.FILTERED for header in members},
                reason,
            )
            return
        in_order = tuple(sorted(members, key=lambda header: header.replica))
        lag = max(self._lag(header) for header in in_order)
        self._ready[group] = ReadyGroup(group_id=group, members=in_order, lag=lag)

    def _end_group(
        self, group: int, outcome: Disposition, members: dict[Place, Disposition], reason: str
    ) -> None:
        """Close a group without training it; candidates outside `members` are incomplete or redundant."""
        others = Disposition.INCOMPLETE if outcome is Disposition.INCOMPLETE else Disposition.REDUNDANT
        for place, header in self._candidates.pop(group, {}).items():
            self._decide(header, members.get(place, others), reason)
        self._pending.closed[group] = outcome

    def _tallies(self, group: int) -> dict[int, ReplicaTally]:
        published: Mapping[int, ReplicaTally] = self._ledger.tallies.get(group, {})
        pending: Mapping[int, ReplicaTally] = self._pending.tallies.get(group, {})
        return {
            replica: published.get(replica, ReplicaTally()) + pending.get(replica, ReplicaTally())
            for replica in published.keys() | pending.keys()
        }

    def _lag(self, header: SampleHeader) -> int:
        assert header.first_version is not None
        return self._ledger.version - header.first_version

    def _is_protected(self, group: int) -> bool:
        return len(self._ledger.stale_versions.get(group, ())) >= self._freshness.protect_after

    def _in_training_order(self) -> list[ReadyGroup]:
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
                    self._turn_stale(group, bound)
                    continue
                quota -= 1
            batch.append(group)
        return batch

    def _turn_stale(self, group: ReadyGroup, bound: int) -> None:
        for header in group.members:
            if self._lag(header) == bound:
                del self._candidates[group.group_id][header.place]
                self._decide(header, Disposition.STALE, over_lag_quota)
        self._changed.add(group.group_id)
        self._ready.pop(group.group_id, None)

    def _is_held(self, now_seconds: float, batch: set[int]) -> bool:
        """Whether a protected group that is not complete forbids the next version for now."""
        held = False
        for group, stale in self._ledger.stale_versions.items():
            if group in batch or group in self._ready or group in self._pending.closed:
                continue
            if not self._is_protected(group) or not self._would_outrun(group, stale):
                continue
            waits = [self._waits_for(group, replica, now_seconds) for replica, _ in stale]
            held |= any(waits)
        return held

    def _waits_for(self, group: int, replica: int, now_seconds: float) -> bool:
        if (group, replica) not in self._hold.since:
            self._hold.since[(group, replica)] = now_seconds
            self._hold.waits[group] += 1
        return now_seconds - self._hold.since[(group, replica)] < self._freshness.patience_seconds

    def _would_outrun(self, group: int, stale: list[tuple[int, int]]) -> bool:
        versions = [version for _, version in stale[self._freshness.protect_after - 1 :][:1]]
        versions += [
            header.first_version
            for header in self._candidates.get(group, {}).values()
            if header.first_version is not None
        ]
        return self._ledger.version + 1 > newest_version_while_protected(min(versions), self._ledger.alpha)

    def _left_over(self, group: ReadyGroup, trained: dict[Place, Verdict]) -> dict[Place, Verdict]:
        """Verdicts on the batch's own spare samples."""
        replicas = {header.replica for header in group.members}
        return {
            place: verdict_of(
                header,
                Disposition.DUPLICATE if header.replica in replicas else Disposition.REDUNDANT,
                version=self._ledger.version,
                reason=spare,
            )
            for place, header in self._candidates.get(group.group_id, {}).items()
            if place not in trained
        }
