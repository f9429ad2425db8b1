"""The ideal that training is measured against: the protocol's rules in discrete events, without any overhead.

Pure. Decisions, messages, reloads and commits take no time, and a slot without a task takes the oldest open group's
next rollout at once. Admission, freshness, regeneration and protection are those of docs/protocol.md, by the pure rules
of `rollog/rules`; who does what and when is played here alone. No prompt is filtered and no rollout fails.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from rollog.rules.admission import max_open_groups
from rollog.rules.alpha_control import TakenStep, alpha_of_step, may_become_fresh
from rollog.rules.freshness import is_stale, lag_bound, lag_quota, newest_version_while_protected
from rollog.rules.reasons import aged_surplus, over_lag_bound, over_lag_quota, unprotected_reasons

if TYPE_CHECKING:
    from benchmarks.harness.workload import SeededWorkload
    from rollog.settings.groups import FreshnessConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What is trained, and on what: batches of `num_groups` groups, rollouts on `num_slots` slots."""

    num_groups: int
    group_size: int
    num_steps: int
    num_slots: int
    train_seconds: float
    freshness: FreshnessConfig


@dataclass(slots=True)
class _Group:
    """First versions of the finished samples by replica, and the versions of stale verdicts that protect the group."""

    finished: dict[int, int] = field(default_factory=dict)
    stale_at: list[int] = field(default_factory=list)


def training_step_seconds(draw: SeededWorkload, run: TrainingRun) -> float:
    """Mean seconds between the steps of a run, as the real one is measured: from the first step to the last."""
    ends = TrainingModel(draw, run).step_ends()
    return (ends[-1] - ends[0]) / (len(ends) - 1)


class TrainingModel:
    """One run, event by event: rollouts end, steps end, and whatever these make possible happens at once.

    `num_begun` counts the rollouts that took a slot, `num_emptied` how often an open group lost all that it had.
    """

    def __init__(self, draw: SeededWorkload, run: TrainingRun) -> None:
        self._draw = draw
        self._run = run
        self._now = 0.0
        self._version = 0
        self._alpha = alpha_of_step(1, (), run.freshness)
        self._open: dict[int, _Group] = {}
        self._num_opened = 0
        self._waiting: list[tuple[int, int]] = []
        self._running: list[tuple[float, int, int, int, int]] = []
        self._order = count()
        self._batch: list[int] = []
        self._batch_ends = math.inf
        self._idle_since = 0.0
        self._taken: list[TakenStep] = []
        self._made_again: set[int] = set()
        self.num_begun = 0
        self.num_emptied = 0

    def step_ends(self) -> list[float]:
        """Seconds at which the steps are committed."""
        ends: list[float] = []
        self._go_on()
        while self._version < self._run.num_steps:
            if self._running and self._running[0][0] < self._batch_ends:
                self._now, _, group, replica, version = heapq.heappop(self._running)
                # A sample of a group that is closed meanwhile is redundant.
                if group in self._open:
                    self._open[group].finished[replica] = version
            else:
                self._end_step()
                ends.append(self._now)
            self._go_on()
        return ends

    def _go_on(self) -> None:
        if not self._batch:
            self._judge()
            self._begin_step()
            self._count_emptied()
        self._open_groups()
        while self._waiting and len(self._running) < self._run.num_slots:
            group, replica = heapq.heappop(self._waiting)
            end = self._now + self._draw.seconds(group, replica)
            heapq.heappush(self._running, (end, next(self._order), group, replica, self._version))
            self.num_begun += 1

    def _open_groups(self) -> None:
        bound = max_open_groups(
            alpha=self._alpha,
            groups_per_batch=self._run.num_groups,
            steps_left=self._run.num_steps - self._version,
            redundant_groups=0,
            num_early_filtered=0,
        )
        while len(self._open) < bound:
            group, self._num_opened = self._num_opened, self._num_opened + 1
            self._open[group] = _Group()
            for replica in range(self._run.group_size):
                heapq.heappush(self._waiting, (group, replica))

    def _judge(self) -> None:
        for number, group in self._open.items():
            # A complete group has waited for its batch: that its members age says nothing about its prompt.
            reason = aged_surplus if self._is_complete(number) else over_lag_bound
            for replica, version in list(group.finished.items()):
                if is_stale(self._version, version, self._alpha):
                    del group.finished[replica]
                    self._make_again(number, replica, reason)
        self._take_back()

    def _take_back(self) -> None:
        """Running rollouts that can only end stale leave their slots at once and are ordered again."""
        kept = []
        for entry in self._running:
            _, _, number, replica, version = entry
            if number in self._open and self._cannot_be_fresh(number, version):
                self._make_again(number, replica, over_lag_bound)
            else:
                kept.append(entry)
        heapq.heapify(kept)
        self._running = kept

    def _cannot_be_fresh(self, number: int, version: int) -> bool:
        """Whether a rollout that began under this version can only end stale, however soon it ends."""
        return is_stale(self._version, version, self._alpha) and (
            self._is_protected(number) or not may_become_fresh(version, self._version, self._run.freshness)
        )

    def _make_again(self, number: int, replica: int, reason: str) -> None:
        if reason not in unprotected_reasons:
            self._open[number].stale_at.append(self._version)
        heapq.heappush(self._waiting, (number, replica))
        self._made_again.add(number)

    def _count_emptied(self) -> None:
        if self._made_again:
            under_way = {number for _, _, number, _, _ in self._running}
            left = {number for number, group in self._open.items() if group.finished} | under_way
            self.num_emptied += len(self._made_again - left)
            self._made_again.clear()

    def _begin_step(self) -> None:
        batch = self._next_batch()
        if len(batch) == self._run.num_groups and not self._is_held(set(batch)):
            self._batch = batch
            self._batch_ends = self._now + self._run.train_seconds

    def _next_batch(self) -> list[int]:
        """The groups of a batch in training order; beyond the quota those of the largest lag turn stale."""
        quota = lag_quota(self._alpha, self._run.num_groups)
        batch: list[int] = []
        for number in sorted(filter(self._is_complete, self._open), key=self._place_in_batch):
            if len(batch) == self._run.num_groups:
                break
            if quota is not None and self._lag(number) == lag_bound(self._alpha):
                if quota == 0:
                    self._turn_oldest_stale(number)
                    continue
                quota -= 1
            batch.append(number)
        return batch

    def _turn_oldest_stale(self, number: int) -> None:
        oldest = self._version - self._lag(number)
        finished = self._open[number].finished
        for replica in [replica for replica, version in finished.items() if version == oldest]:
            del finished[replica]
            self._make_again(number, replica, over_lag_quota)

    def _is_complete(self, number: int) -> bool:
        return len(self._open[number].finished) == self._run.group_size

    def _place_in_batch(self, number: int) -> tuple[bool, int, int]:
        return (not self._is_protected(number), -self._lag(number), number)

    def _lag(self, number: int) -> int:
        return self._version - min(self._open[number].finished.values())

    def _is_protected(self, number: int) -> bool:
        return len(self._open[number].stale_at) >= self._run.freshness.protect_after

    def _is_held(self, batch: set[int]) -> bool:
        return any(
            self._is_protected(number) and self._would_outrun(group)
            for number, group in self._open.items()
            if number not in batch and not self._is_complete(number)
        )

    def _would_outrun(self, group: _Group) -> bool:
        first = min(group.stale_at[self._run.freshness.protect_after - 1], *group.finished.values(), math.inf)
        return self._version + 1 > newest_version_while_protected(int(first), self._alpha)

    def _end_step(self) -> None:
        self._now = self._batch_ends
        began = self._now - self._run.train_seconds
        seconds = self._now - self._idle_since
        self._version += 1
        step = TakenStep(
            number=self._version,
            alpha=self._alpha,
            wait_share=(began - self._idle_since) / seconds if seconds > 0 else 0.0,
            effective_sample_size=1.0,
            divergence=0.0,
        )
        self._taken.append(step)
        self._alpha = alpha_of_step(self._version + 1, self._taken[-2:], self._run.freshness)
        for number in self._batch:
            del self._open[number]
        self._batch, self._batch_ends, self._idle_since = [], math.inf, self._now
