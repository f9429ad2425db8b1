"""The trainer's sample buffer: samples read and not yet disposed of, the groups they form, the batch they make.

A state machine without Kafka and clock. The caller adds headers as they arrive, asks for a batch, and reports the
ledger record that was committed. In between every sample is a fresh candidate or has a pending verdict.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from rollog.rules.freshness import lag_bound
from rollog.rules.late_rewards import RewardOutcome
from rollog.rules.limits import is_exhausted
from rollog.rules.members import facts_of_group, is_protected
from rollog.rules.reasons import (
    aged_surplus,
    cancelled,
    closed_short,
    group_closed,
    last_batch,
    no_reward,
    over_lag_bound,
    over_lag_quota,
    redundant_group,
    run_closed,
    spare,
    timed_out,
    untrainable,
)
from rollog.rules.verdicts import current_verdict
from schemas import ClosedGroup, Disposition, Status
from trainer.buffer.pending import Pending, Place
from trainer.buffer.protection import ProtectionHold
from trainer.buffer.ready_groups import in_training_order, lag_of, ready_group, within_quota
from trainer.buffer.redundancy import RedundantGroups
from trainer.buffer.reward_waits import RewardWaits
from trainer.buffer.verdicts import verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rollog.rules.headers import SampleHeader
    from rollog.rules.late_rewards import GivenReward
    from rollog.rules.ledger_state import LedgerState
    from rollog.rules.members import GroupFacts
    from rollog.settings.groups import FreshnessConfig, GroupConfig
    from schemas import LedgerRecord, Verdict
    from trainer.buffer.ready_groups import ReadyGroup

_made_again = (Disposition.STALE, Disposition.UNREWARDED)
_stale_by_age = frozenset({(Disposition.STALE, over_lag_bound), (Disposition.STALE, cancelled)})


class SampleBuffer:
    """Judges samples against the ledger and assembles batches (PROTOCOL: trainer, freshness, dispositions).

    It holds the header of every sample that was read and is not disposed of; nobody else keeps one.

    | a sample is | from | until |
    | --- | --- | --- |
    | waiting | it arrives fresh, without its reward | the reward arrives, or it gets a pending verdict |
    | candidate | it arrives fresh, or its reward does | its group is in a batch, or it gets a pending verdict |
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

    def __init__(
        self,
        ledger: LedgerState,
        groups: GroupConfig,
        freshness: FreshnessConfig,
        waits: RewardWaits | None = None,
    ) -> None:
        self._ledger = ledger
        self._groups = groups
        self._freshness = freshness
        self._headers: dict[Place, SampleHeader] = {}
        self._candidates: defaultdict[int, set[Place]] = defaultdict(set)
        self.waits = RewardWaits() if waits is None else waits
        self._ready: dict[int, ReadyGroup] = {}
        self._pending = Pending()
        self._hold = ProtectionHold(ledger, freshness)
        self._redundant = RedundantGroups(ledger, groups.redundant_groups)
        self._changed: set[int] = set()
        self._surplus: set[int] = set()
        self._begun: dict[int, float] = {}

    def add(self, header: SampleHeader) -> None:
        """Take in one record; those that already have their disposition are ignored."""
        if self._ledger.is_disposed(*header.place) or header.place in self._headers:
            return
        self._take(self.waits.with_reward(header))

    def give(self, group: int, given: GivenReward) -> RewardOutcome:
        """Take in a reward that was read, for an attempt of that group; its task or sample may come later."""
        if self._is_closed(group):
            return RewardOutcome.LATE
        outcome = self.waits.kept.add(group, given)
        named = [header for header in self.waits.of(group) if header.sample_id == given.sample_id]
        rewarded = [found for header in named if not (found := self.waits.with_reward(header)).is_waiting]
        for header in rewarded:
            self.waits.end(header)
            self._take(header)
        if rewarded:
            return RewardOutcome.GIVEN
        return RewardOutcome.MISFIT if named and outcome is RewardOutcome.KEPT else outcome

    def end_waits(self, read_until_seconds: float) -> None:
        """Give up samples whose time was over when everything was written that has been read of `rewards`."""
        for header in list(self.waits.over(read_until_seconds)):
            self.waits.end(header)
            self._decide(header, Disposition.UNREWARDED, no_reward)
            self._changed.add(header.group_id)

    @property
    def has_unrewarded(self) -> bool:
        """Whether a sample was given up and the ledger does not know yet."""
        verdicts = self._pending.verdicts.values()
        return any(verdict.disposition is Disposition.UNREWARDED for verdict in verdicts)

    @property
    def has_pending(self) -> bool:
        """Whether there are verdicts or closed groups to publish."""
        self._close_changed_groups()
        return bool(self._pending.verdicts or self._pending.closed)

    @property
    def frees_replicas(self) -> bool:
        """Whether a pending verdict lets a replica be made again: its sample ended well, so only the ledger can say."""
        self._close_changed_groups()
        return any(
            verdict.disposition in _made_again
            and verdict.group_id not in self._pending.closed
            and self._headers[place].status is Status.FINISHED
            for place, verdict in self._pending.verdicts.items()
        )

    @property
    def ready(self) -> list[ReadyGroup]:
        """Complete groups that pass, in order of their ids."""
        self._close_changed_groups()
        return [self._ready[group] for group in sorted(self._ready)]

    @property
    def num_ready(self) -> int:
        """How many of them there are."""
        self._close_changed_groups()
        return len(self._ready)

    @property
    def num_pending(self) -> int:
        """Verdicts that the next ledger record publishes."""
        return len(self._pending.verdicts)

    @property
    def holding(self) -> dict[int, float]:
        """Protected groups that kept the last look from a batch, and for how many seconds more at most."""
        return dict(self._hold.holding)

    def lacking(self, groups: Iterable[int]) -> list[tuple[int, int]]:
        """Of these groups the ones that are neither complete nor closed, with the number of samples each lacks."""
        return [
            (group, self._groups.group_size - len({header.replica for header in self._fresh(group)}))
            for group in groups
            if group not in self._ready and not self._is_closed(group)
        ]

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
        self._hold.holding.clear()
        ordered = in_training_order(self._ready.values(), self._groups, self._is_protected)
        batch, beyond = within_quota(ordered, self._groups, self._ledger.alpha)
        for group in beyond:
            self._turn_stale(group)
        if len(batch) < self._groups.groups_per_batch:
            # A short batch is the run's last: while any group can still become complete, it is not.
            if last_group_id is None or not batch or not self.has_every_group(last_group_id):
                return None
            if not train_short:
                self._drop_ready()
                return None
        # Asked last, and only with a batch in hand: the time a protected group may hold up runs from here on.
        settled = {group.group_id for group in batch} | self._ready.keys() | self._pending.closed.keys()
        if self._hold.is_held(now_seconds, settled, self._undisposed):
            return None
        return tuple(batch)

    def has_every_group(self, last_group_id: int) -> bool:
        """Whether every group up to `last_group_id` is closed or complete."""
        self._close_changed_groups()
        # From the newest on: what lacks is among them, and those before are as many as the run is old.
        return all(group in self._ready or self._is_closed(group) for group in range(last_group_id, -1, -1))

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
        self.waits.end_all()

    def committed(self, record: LedgerRecord) -> list[tuple[Verdict, SampleHeader]]:
        """Release what a committed record, folded into the ledger already, disposed of; judge the others again.

        Returns its verdicts with the headers they are about.
        """
        disposed = [
            (verdict, self._headers.pop((verdict.partition, verdict.offset))) for verdict in record.verdicts
        ]
        closed = {group.group_id for group in record.closed_groups}
        self._hold.forget(closed)
        self._pending = Pending()
        self._candidates.clear()
        self.waits.forget(closed)
        self.waits.end_all()
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

    def _take(self, header: SampleHeader) -> None:
        self._headers[header.place] = header
        self._judge(header)

    def _judge(self, header: SampleHeader) -> None:
        group = header.group_id
        verdict = current_verdict(header, self._ledger)
        if verdict is None and group in self._pending.closed:
            verdict = (Disposition.REDUNDANT, group_closed)
        if verdict is None and header.is_waiting:
            self.waits.add(header)
        elif verdict is None:
            self._candidates[group].add(header.place)
        elif verdict == (Disposition.STALE, over_lag_bound) and group in self._surplus:
            self._decide(header, Disposition.STALE, aged_surplus)
        elif verdict in _stale_by_age and self._redundant.includes(group):
            self._decide(header, Disposition.STALE, redundant_group)
        else:
            self._decide(header, *verdict)
        if group >= 0:
            self._changed.add(group)

    def _decide(self, header: SampleHeader, disposition: Disposition, reason: str) -> None:
        self._pending.add(verdict_of(header, disposition, version=self._ledger.version, reason=reason))

    def _close_changed_groups(self) -> None:
        """Bring ready and pending up to date for every group something happened to."""
        while self._changed:
            group = self._changed.pop()
            self._ready.pop(group, None)
            if self._is_closed(group):
                continue
            facts = self._facts(group)
            if facts.refused_as is not None:
                members = {header.place: Disposition.FILTERED for header in facts.members}
                self._end_group(group, Disposition.FILTERED, members, facts.refused_as)
            elif facts.is_complete:
                self._ready[group] = ready_group(group, facts.members, self._ledger.version)
            elif _closes_short(facts, self._groups, self._freshness):
                self._end_group(group, Disposition.INCOMPLETE, {}, closed_short)

    def _is_closed(self, group: int) -> bool:
        """Whether it is closed in the ledger, or will be by the next record."""
        return group in self._ledger.closed_groups or group in self._pending.closed

    def _facts(self, group: int) -> GroupFacts:
        return facts_of_group(
            group,
            fresh=self._fresh(group),
            endings=self._pending.endings.get(group, ()),
            ledger=self._ledger,
            groups=self._groups,
            freshness=self._freshness,
            waiting=[header.replica for header in self.waits.of(group)],
        )

    def _undisposed(self, group: int) -> list[SampleHeader]:
        """The fresh ones and those that wait for a reward."""
        return [*self._fresh(group), *self.waits.of(group)]

    def _fresh(self, group: int) -> list[SampleHeader]:
        return [self._headers[place] for place in self._candidates.get(group, ())]

    def _close_overdue(self, now_seconds: float) -> None:
        """End groups that stay incomplete for longer than they may."""
        timeout = self._groups.timeout_seconds
        if timeout is None:
            return
        # Groups of which everything failed so far have no candidate, but they have begun.
        seen = {*self._candidates, *self.waits.groups, *self._pending.endings, *self._ledger.tallies}
        begun = seen - self._ready.keys()
        self._begun = {
            group: self._begun.get(group, now_seconds)
            for group in begun
            if group >= 0 and not self._is_closed(group)
        }
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
        for header in self._undisposed(group):
            self._decide(header, members.get(header.place, others), reason)
        self._candidates.pop(group, None)
        self.waits.end_group(group)
        self._pending.closed[group] = outcome

    def _turn_stale(self, group: ReadyGroup) -> None:
        """Only members of the largest lag; the younger ones stay candidates for the same group."""
        bound = lag_bound(self._ledger.alpha)
        for header in group.members:
            if lag_of(header, self._ledger.version) == bound:
                self._candidates[group.group_id].remove(header.place)
                self._decide(header, Disposition.STALE, over_lag_quota)
        self._changed.add(group.group_id)
        self._ready.pop(group.group_id, None)

    def _is_protected(self, group: int) -> bool:
        return is_protected(group, self._ledger, self._freshness)

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
            for header in self._undisposed(group.group_id)
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
