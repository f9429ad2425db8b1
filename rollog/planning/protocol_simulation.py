"""The average time of a training step, by playing the protocol on rollout durations (docs/planning.md).

Discrete events without randomness. The rules are those of docs/protocol.md: admission, freshness with its quota,
regeneration, protection, cancelling of what nobody needs any more. Decisions and messages take no time, a free slot
takes the next rollout of the oldest open group that lacks one, and nothing fails.

States of a rollout: wanted -> running -> scored, its slot free -> finished -> trained. One that turns stale before it
is trained is wanted again; what its group no longer needs is forgotten. Example: B = G = 1, alpha 1, one slot,
rollouts of 1 s, training of 2 s. Two groups are open at first; group 0 ends at 1 and is trained until 3, group 1 ends
at 2 and waits, with lag 1 it is trained until 5, and so on: 2 s a step.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from rollog.rules.admission import max_open_groups
from rollog.rules.freshness import lag_bound, lag_quota, min_version, newest_version_while_protected

Durations = Sequence[Sequence[float]]
"""Seconds that rollouts hold their slots, by group and replica; both are gone through over and over again. A rollout
that is made again takes as long as before."""

endless = 1 << 30
"""Steps of a run that never comes to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """How a run treats its groups, as its settings have it."""

    redundant_replicas: int = 0
    """R: extra rollouts of a group; the first G that end count."""
    redundant_groups: int = 0
    """Groups open beyond what a batch needs."""
    protect_after: int = 1
    """A group is protected from its n-th stale sample on."""
    pass_share: float = 1.0
    """Share of the groups that pass the filters, spread evenly; others are replaced once complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRun:
    """What is played, and on how many slots."""

    rules: GroupRules
    groups_per_batch: int
    """B: groups trained in one step."""
    group_size: int
    """G: rollouts of a group that are trained."""
    alpha: float
    """Asynchronous ratio, the same at every step."""
    num_slots: int
    """Rollouts under way at once."""
    train_seconds: float
    """From the choice of a batch to the commit of its step."""
    weights_seconds: float = 0.0
    """From a commit until the workers serve its weights. A rollout under way goes on and keeps its first version."""
    score_seconds: float = 0.0
    """From the last token of a rollout to its reward; its slot is free meanwhile."""
    num_steps: int = endless
    """Steps of the run: towards its end no more groups are opened than it still needs."""


@dataclass(slots=True)
class _Group:
    """First versions of its rollouts by replica, and the versions at which some turned out stale.

    A rollout is `running` until it is scored; beside its version stands its number in the order of their beginnings.
    """

    wanted: set[int] = field(default_factory=set)
    running: dict[int, tuple[int, int]] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)
    stale_at: list[int] = field(default_factory=list)


def step_seconds(durations: Durations, run: ProtocolRun, *, num_warm_up: int, num_measured: int) -> float:
    """Mean seconds of a step after `num_warm_up` steps. Raises ValueError where a group has no durations."""
    ends = step_ends(durations, run, num_warm_up + num_measured)
    return (ends[-1] - (ends[num_warm_up - 1] if num_warm_up else 0.0)) / num_measured


def step_ends(durations: Durations, run: ProtocolRun, num_steps: int) -> list[float]:
    """Seconds at which the first `num_steps` steps are committed. Raises ValueError where a group has no durations."""
    if not durations or not all(durations):
        raise ValueError("no durations to simulate with: at least one rollout must have finished")
    return _Play(durations, run).step_ends(num_steps)


class _Play:
    """One run, event by event: rollouts end, steps end, and whatever these make possible happens at once."""

    def __init__(self, durations: Durations, run: ProtocolRun) -> None:
        self._durations = durations
        self._run = run
        self._rules = run.rules
        self._now = 0.0
        self._version = 0
        self._served_from = [0.0]
        self._open: dict[int, _Group] = {}
        self._num_opened = 0
        self._closed: list[int] = []
        self._ready: dict[int, int] = {}
        self._protected: set[int] = set()
        self._waiting: list[tuple[int, int]] = []
        self._running: list[tuple[float, int, int, int]] = []
        self._scored: set[int] = set()
        self._num_free = run.num_slots
        self._order = count()
        self._batch: list[int] = []
        self._batch_ends = math.inf
        self._lag_bound = lag_bound(run.alpha)
        self._quota = lag_quota(run.alpha, run.groups_per_batch)

        self._most_open = self._max_open_groups()

    def step_ends(self, num_steps: int) -> list[float]:
        ends: list[float] = []
        self._fill_slots()
        while len(ends) < num_steps:
            if self._running and self._running[0][0] < self._batch_ends:
                self._end_rollout(*heapq.heappop(self._running))
            else:
                self._commit()
                ends.append(self._now)
            self._fill_slots()
        return ends

    def _fill_slots(self) -> None:
        while len(self._open) < self._most_open:
            number, self._num_opened = self._num_opened, self._num_opened + 1
            self._open[number] = _Group()
            self._want_missing(number)
        while self._num_free and self._waiting:
            number, replica = heapq.heappop(self._waiting)
            group = self._open.get(number)
            if group is None:
                continue
            group.wanted.discard(replica)
            if number not in self._ready:
                self._begin_rollout(number, replica)

    def _max_open_groups(self) -> int:
        return max_open_groups(
            alpha=self._run.alpha,
            groups_per_batch=self._run.groups_per_batch,
            steps_left=self._run.num_steps - self._version,
            redundant_groups=self._rules.redundant_groups,
            num_early_filtered=0,
        )

    def _want_missing(self, number: int) -> None:
        """Order what an open group lacks, redundant replicas included."""
        group = self._open[number]
        for replica in range(self._run.group_size + self._rules.redundant_replicas):
            if not (replica in group.wanted or replica in group.running or replica in group.finished):
                group.wanted.add(replica)
                heapq.heappush(self._waiting, (number, replica))

    def _begin_rollout(self, number: int, replica: int) -> None:
        begin = max(self._now, self._served_from[self._least_version(number)])
        first_version = bisect_right(self._served_from, begin) - 1
        seconds = self._durations[number % len(self._durations)]
        order = next(self._order)
        self._open[number].running[replica] = (order, first_version)
        self._num_free -= 1
        heapq.heappush(self._running, (begin + seconds[replica % len(seconds)], order, number, replica))

    def _least_version(self, number: int) -> int:
        """The version that the worker waits for before it begins a rollout of this group."""
        if self._served_from[self._version] <= self._now:
            return self._version  # nothing to wait for
        return min_version(
            self._version,
            sum(other < number for other in self._open),
            self._run.groups_per_batch,
            self._run.alpha,
            protected=number in self._protected,
        )

    def _end_rollout(self, end: float, order: int, number: int, replica: int) -> None:
        group = self._open.get(number)
        if group is None or group.running.get(replica, (-1, 0))[0] != order:
            self._scored.discard(order)
            return  # cancelled meanwhile; its slot is free already
        self._now = end
        if order not in self._scored:
            self._num_free += 1
            if self._run.score_seconds:
                self._scored.add(order)
                heapq.heappush(self._running, (end + self._run.score_seconds, order, number, replica))
                return
        self._scored.discard(order)
        _, group.finished[replica] = group.running.pop(replica)
        if len(group.finished) == self._run.group_size:
            self._cancel_running(group)
            if self._passes(number):
                self._ready[number] = min(group.finished.values())
                self._begin_step()
            else:
                self._close(number)

    def _passes(self, number: int) -> bool:
        share = self._rules.pass_share
        return share >= 1 or math.floor((number + 1) * share) > math.floor(number * share)

    def _cancel_running(self, group: _Group) -> None:
        self._take_back(group, list(group.running))

    def _take_back(self, group: _Group, replicas: Sequence[int]) -> None:
        orders = [group.running.pop(replica)[0] for replica in replicas]
        self._num_free += sum(order not in self._scored for order in orders)

    def _close(self, number: int) -> None:
        del self._open[number]
        self._ready.pop(number, None)
        self._protected.discard(number)
        insort(self._closed, number)

    def _begin_step(self) -> None:
        """Train, if the trainer is idle, a batch is there and no protected group is in the way."""
        if self._batch or not self._may_change_by_choosing():
            return
        batch = self._next_batch()
        if len(batch) == self._run.groups_per_batch and not self._is_held():
            self._batch = batch
            self._batch_ends = self._now + self._run.train_seconds

    def _may_change_by_choosing(self) -> bool:
        """Whether there may be a batch to train, or groups over the quota that turn stale as one is chosen."""
        if self._quota is not None and self._num_oldest() > self._quota:
            return True
        return len(self._ready) >= self._run.groups_per_batch and not self._is_held()

    def _num_oldest(self) -> int:
        oldest = self._version - self._lag_bound
        return sum(first == oldest for first in self._ready.values())

    def _next_batch(self) -> list[int]:
        """The groups of a batch in training order; beyond the quota the members of the largest lag turn stale."""
        quota, batch = self._quota, list[int]()
        for number in sorted(self._ready, key=self._place_in_batch):
            if len(batch) == self._run.groups_per_batch:
                break
            if quota is not None and self._version - self._ready[number] == self._lag_bound:
                if quota == 0:
                    self._turn_oldest_stale(number)
                    continue
                quota -= 1
            batch.append(number)
        return batch

    def _turn_oldest_stale(self, number: int) -> None:
        oldest = self._ready[number]
        finished = self._open[number].finished
        self._drop(number, [replica for replica, first in finished.items() if first == oldest])

    def _place_in_batch(self, number: int) -> tuple[bool, int, int]:
        return (number not in self._protected, self._ready[number], number)

    def _is_held(self) -> bool:
        return any(self._would_outrun(self._open[number]) for number in self._protected - self._ready.keys())

    def _would_outrun(self, group: _Group) -> bool:
        first = min(group.stale_at[self._rules.protect_after - 1], *group.finished.values(), self._version)
        return self._version + 1 > newest_version_while_protected(first, self._run.alpha)

    def _commit(self) -> None:
        self._now = self._batch_ends
        self._version += 1
        self._most_open = self._max_open_groups()
        self._served_from.append(self._now + self._run.weights_seconds)
        for number in self._batch:
            self._close(number)
        self._batch, self._batch_ends = [], math.inf
        first_fresh = self._version - self._lag_bound
        for number, group in self._open.items():
            finished = [replica for replica, first in group.finished.items() if first < first_fresh]
            running = [replica for replica, (_, first) in group.running.items() if first < first_fresh]
            if finished or running:
                self._turn_stale(number, finished, running)
        self._begin_step()

    def _turn_stale(self, number: int, finished: Sequence[int], running: Sequence[int]) -> None:
        """What is too old for the next step leaves its slot or the batches, and is ordered again."""
        group = self._open[number]
        # A complete group has waited for training, not for a long rollout; what was ordered in excess lost the race.
        if number not in self._ready and not self._is_in_excess(number):
            group.stale_at += [self._version] * (len(finished) + len(running))
            if len(group.stale_at) >= self._rules.protect_after:
                self._protected.add(number)
        self._take_back(group, running)
        self._drop(number, finished)

    def _is_in_excess(self, number: int) -> bool:
        num_later = len(self._closed) - bisect_right(self._closed, number)
        return num_later < self._rules.redundant_groups

    def _drop(self, number: int, replicas: Sequence[int]) -> None:
        for replica in replicas:
            del self._open[number].finished[replica]
        if replicas:
            self._ready.pop(number, None)
        self._want_missing(number)
