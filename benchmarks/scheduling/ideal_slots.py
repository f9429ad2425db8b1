"""The ideal that scheduling is measured against: workers with slots in discrete events, without any overhead.

Pure. Orders are served first come, first served, each by the worker with most free slots as soon as one has enough;
decisions, messages and starts take no time.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from benchmarks.harness.engine_clock import full_speed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness.engine_clock import Slowdown
    from benchmarks.harness.workload import SeededWorkload


@dataclass(slots=True)
class _Worker:
    """`progress` is the work that a rollout running from the beginning would have done by now, in seconds."""

    num_slots: int
    slowdown: Slowdown
    num_occupied: int = 0
    progress: float = 0.0
    ends: list[tuple[float, int, int, int]] = field(default_factory=list)

    @property
    def num_free(self) -> int:
        return self.num_slots - self.num_occupied

    def seconds_to_next_end(self) -> float:
        return (self.ends[0][0] - self.progress) * self.slowdown(self.num_occupied)

    def advance(self, seconds: float) -> None:
        if self.num_occupied:
            self.progress += seconds / self.slowdown(self.num_occupied)


class SlotModel:
    """Workers with slots, and the time of the model."""

    def __init__(self, num_workers: int, slots_per_worker: int, slowdown: Slowdown = full_speed) -> None:
        self._workers = [_Worker(slots_per_worker, slowdown) for _ in range(num_workers)]
        self._waiting: deque[tuple[int, float, int]] = deque()
        self._order = count()
        self.now = 0.0

    def submit(self, label: int, seconds: float, num_slots: int = 1) -> None:
        """Order `seconds` of work that holds `num_slots` slots of one worker from its start to its end."""
        self._waiting.append((label, seconds, num_slots))
        self._start_waiting()

    def ends(self) -> Iterator[int]:
        """Labels of what ends, in order, until nothing runs; `now` is then the time of that end."""
        while any(worker.ends for worker in self._workers):
            busy = [worker for worker in self._workers if worker.ends]
            first = min(busy, key=_Worker.seconds_to_next_end)
            seconds = first.seconds_to_next_end()
            self.now += seconds
            for worker in busy:
                worker.advance(seconds)
            _, _, label, num_slots = heapq.heappop(first.ends)
            first.num_occupied -= num_slots
            self._start_waiting()
            yield label

    def _start_waiting(self) -> None:
        while self._waiting:
            label, seconds, num_slots = self._waiting[0]
            worker = max(self._workers, key=lambda worker: worker.num_free)
            # What needs more slots than a worker has takes an idle one.
            if worker.num_free < num_slots and worker.num_occupied:
                return
            self._waiting.popleft()
            worker.num_occupied += num_slots
            heapq.heappush(worker.ends, (worker.progress + seconds, next(self._order), label, num_slots))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What is to be collected: `num_groups` groups of `group_size` that pass the filter."""

    num_groups: int
    group_size: int


def queue_seconds(
    workload: SeededWorkload, batch: Batch, model: SlotModel, *, redundant_groups: int = 0
) -> float:
    """Queue scheduling: a filtered group is replaced at once; ends when enough groups have passed."""
    missing: dict[int, int] = {}

    def open_group() -> None:
        group = len(missing)
        missing[group] = batch.group_size
        for replica in range(batch.group_size):
            model.submit(group, workload.seconds(group, replica))

    for _ in range(batch.num_groups + redundant_groups):
        open_group()
    num_passed = 0
    for group in model.ends():
        missing[group] -= 1
        if missing[group]:
            continue
        if not workload.passes(group):
            open_group()
            continue
        num_passed += 1
        if num_passed == batch.num_groups:
            break
    return model.now


def batch_seconds(workload: SeededWorkload, batch: Batch, model: SlotModel) -> float:
    """Rounds: all of a round must end, then only the prompts still missing go out again."""
    num_passed = num_opened = 0
    while num_passed < batch.num_groups:
        groups = range(num_opened, num_opened + batch.num_groups - num_passed)
        for group in groups:
            for replica in range(batch.group_size):
                model.submit(group, workload.seconds(group, replica))
        for _ in model.ends():
            pass
        num_opened = groups.stop
        num_passed += sum(map(workload.passes, groups))
    return model.now


def unreplicated_seconds(workload: SeededWorkload, batch: Batch, model: SlotModel) -> float:
    """One order per prompt, which holds all its slots until its longest rollout ends; every group counts."""
    for group in range(batch.num_groups):
        longest = max(workload.seconds(group, replica) for replica in range(batch.group_size))
        model.submit(group, longest, batch.group_size)
    for _ in model.ends():
        pass
    return model.now
