"""The ideal that episodes are measured against: environments and training in discrete events, without any overhead.

Pure, and written apart from the product: no rule of `rollog` is imported, only the draws are shared. Decisions,
messages, starts, reloads and commits take no time. The rules are those of docs/protocol.md for whole alphas, without
filters:

* Open are at most (1 + alpha) B groups, never more than the steps left need, and the redundant groups on top.
* A group orders G members and the redundant ones; with G of them finished the others are cancelled.
* A member that takes longer than the time-out has failed, and is ordered again.
* A step takes B complete groups: protected ones first, then the oldest by version, then by number.
* What is older than alpha versions is made again, finished or under way; a group that this happened to is protected,
  unless it was complete, or ordered in excess and fewer than so many later groups have closed.
* No step is taken that would outrun a protected group.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from benchmarks.agentic.draws import EpisodeDraw


class Draws(Protocol):
    """What chance decides."""

    def of(self, group: int, replica: int, attempt: int) -> EpisodeDraw:
        """The draw of one attempt at an episode."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePlan:
    """What is collected and trained, and where.

    `num_places` environments play at once, each turn of the policy takes `turn_seconds`.
    """

    num_groups: int
    group_size: int
    num_places: int
    num_steps: int = 1
    alpha: int = 0
    redundant_groups: int = 0
    redundant_replicas: int = 0
    turn_seconds: float = 1.0
    train_seconds: float = 0.0
    timeout_seconds: float = math.inf


def lock_step_ends(draws: Draws, plan: EpisodePlan) -> list[float]:
    """Seconds at which the steps are committed when every turn waits for the slowest environment, and training too."""
    ends = []
    now = 0.0
    for step in range(plan.num_steps):
        groups = range(step * plan.num_groups, (step + 1) * plan.num_groups)
        drawn = [draws.of(group, replica, 0) for group in groups for replica in range(plan.group_size)]
        if any(each.hangs_at is not None for each in drawn):
            raise ValueError("in lock-step nobody goes on when one environment hangs")
        turns = zip(*(each.latencies for each in drawn), strict=True)
        now += sum(plan.turn_seconds + max(turn) for turn in turns) + plan.train_seconds
        ends.append(now)
    return ends


@dataclass(slots=True)
class _Group:
    """Versions of the finished members, attempts begun of each, and versions at which going stale counted."""

    finished: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    stale_at: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, order=True)
class _Playing:
    """An episode under way; `order` breaks ties."""

    ends_at: float
    order: int
    group: int = field(compare=False)
    replica: int = field(compare=False)
    version: int = field(compare=False)
    fails: bool = field(compare=False)


class EpisodeModel:
    """One asynchronous run, event by event."""

    def __init__(self, draws: Draws, plan: EpisodePlan) -> None:
        self._draws = draws
        self._plan = plan
        self._now = 0.0
        self._version = 0
        self._open: dict[int, _Group] = {}
        self._closed: list[int] = []
        self._num_opened = 0
        self._waiting: list[tuple[int, int]] = []
        self._playing: list[_Playing] = []
        self._order = count()
        self._batch: list[int] = []
        self._batch_ends_at = math.inf
        self.num_begun = 0

    def step_ends(self) -> list[float]:
        """Seconds at which the steps are committed."""
        ends: list[float] = []
        self._advance()
        while self._version < self._plan.num_steps:
            if self._playing and self._playing[0].ends_at <= self._batch_ends_at:
                episode = heapq.heappop(self._playing)
                self._now = episode.ends_at
                self._end_episode(episode)
            else:
                self._now = self._batch_ends_at
                self._end_step()
                ends.append(self._now)
            self._advance()
        return ends

    def _advance(self) -> None:
        if not self._batch:
            self._begin_step()
        self._open_groups()
        while self._waiting and len(self._playing) < self._plan.num_places:
            self._play(*heapq.heappop(self._waiting))

    def _open_groups(self) -> None:
        plan = self._plan
        steps_left = plan.num_steps - self._version
        most = min((1 + plan.alpha) * plan.num_groups, steps_left * plan.num_groups) + plan.redundant_groups
        while steps_left and len(self._open) < most:
            number, self._num_opened = self._num_opened, self._num_opened + 1
            self._open[number] = _Group()
            self._order_missing(number)

    def _order_missing(self, number: int) -> None:
        """Order what a group lacks, or take back what it does not need any more."""
        finished = self._open[number].finished
        if len(finished) >= self._plan.group_size:
            self._take_back(number)
            return
        present = {each.replica for each in self._playing if each.group == number}
        present |= {replica for group, replica in self._waiting if group == number} | finished.keys()
        for replica in range(self._plan.group_size + self._plan.redundant_replicas):
            if replica not in present:
                heapq.heappush(self._waiting, (number, replica))

    def _take_back(self, number: int) -> None:
        self._playing = [each for each in self._playing if each.group != number]
        self._waiting = [wanted for wanted in self._waiting if wanted[0] != number]
        heapq.heapify(self._playing)
        heapq.heapify(self._waiting)

    def _play(self, number: int, replica: int) -> None:
        plan, group = self._plan, self._open[number]
        attempt = group.attempts.get(replica, 0)
        group.attempts[replica] = attempt + 1
        drawn = self._draws.of(number, replica, attempt)
        seconds = sum(plan.turn_seconds + latency for latency in drawn.latencies)
        fails = drawn.hangs_at is not None or seconds > plan.timeout_seconds
        ends_at = self._now + (plan.timeout_seconds if fails else seconds)
        entry = _Playing(ends_at, next(self._order), number, replica, self._version, fails)
        heapq.heappush(self._playing, entry)
        self.num_begun += 1

    def _end_episode(self, episode: _Playing) -> None:
        if not episode.fails:
            self._open[episode.group].finished[episode.replica] = episode.version
        self._order_missing(episode.group)

    def _begin_step(self) -> None:
        ready = sorted(filter(self._is_complete, self._open), key=self._place_in_batch)
        batch = ready[: self._plan.num_groups]
        if len(batch) < self._plan.num_groups or self._must_wait(set(batch)):
            return
        self._batch = batch
        self._batch_ends_at = self._now + self._plan.train_seconds

    def _end_step(self) -> None:
        self._version += 1
        for number in self._batch:
            del self._open[number]
            self._take_back(number)
        self._closed += self._batch
        self._batch, self._batch_ends_at = [], math.inf
        for number in self._open:
            self._make_stale_again(number)

    def _make_stale_again(self, number: int) -> None:
        """Members that are too old now are ordered anew."""
        group, oldest = self._open[number], self._version - self._plan.alpha
        was_complete = self._is_complete(number)
        stale = [replica for replica, version in group.finished.items() if version < oldest]
        for replica in stale:
            del group.finished[replica]
        hopeless = [each for each in self._playing if each.group == number and each.version < oldest]
        self._playing = [each for each in self._playing if each not in hopeless]
        heapq.heapify(self._playing)
        num_stale = (0 if was_complete else len(stale)) + len(hopeless)
        later = sum(closed > number for closed in self._closed)
        if later >= self._plan.redundant_groups:
            group.stale_at += [self._version] * num_stale
        self._order_missing(number)

    def _is_complete(self, number: int) -> bool:
        return len(self._open[number].finished) >= self._plan.group_size

    def _place_in_batch(self, number: int) -> tuple[bool, int, int]:
        group = self._open[number]
        return (not group.stale_at, min(group.finished.values()), number)

    def _must_wait(self, batch: set[int]) -> bool:
        """Whether a step now would outrun a protected group that is not ready."""
        waited_for = (
            group
            for number, group in self._open.items()
            if group.stale_at and number not in batch and not self._is_complete(number)
        )
        return any(
            self._version + 1 > min(group.stale_at[0], *group.finished.values(), math.inf) + self._plan.alpha
            for group in waited_for
        )
