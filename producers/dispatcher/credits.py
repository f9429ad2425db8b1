"""Credits: which tasks are open, how many slots each worker has left, and who gets the next task.

Pure. A task takes one credit per replica it makes until all of them have their samples: one request for n responses
holds its place in the engine's batch until the longest of them ends. A worker has a credit for each of its slots, some
for tasks that wait there, and one for each rollout that it is scoring, whose slot is free again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.rules.task_names import sequence_of
from schemas import Kind

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from rollog.kernel.broker.ports import Delivery
    from schemas import RolloutTask


_no_ids: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class OpenTask:
    """A task without its final sample."""

    task: RolloutTask
    worker_id: str
    remaining: set[int]
    delivery: Delivery | None = None
    offset: int | None = None
    num_missing: int = 0
    missing_since: float | None = None
    seen_at: float | None = None
    """When it was first noticed that it is under way (`producers.dispatcher.waiting`)."""
    is_cancelled: bool = False

    @property
    def task_id(self) -> str:
        """Identity of the task."""
        return self.task.task_id

    def known_offset(self) -> int | None:
        """Offset of the task on its partition once the broker has acknowledged it."""
        if self.offset is None and self.delivery is not None and self.delivery.done():
            self.offset = self.delivery.offset(timeout_seconds=0)
        return self.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A worker that could take a task."""

    worker_id: str
    num_slots: int
    served_version: int
    is_idle: bool = False
    is_serving: bool = True


@dataclass(slots=True)
class CreditLedger:
    """Open tasks by id and by worker."""

    _open: dict[str, OpenTask] = field(default_factory=dict)
    _by_worker: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _by_group: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    _used: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _touched: set[str] = field(default_factory=set)

    def take_touched(self) -> set[str]:
        """Workers whose slots were taken or freed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def issue(self, open_task: OpenTask) -> None:
        """Take the slots of a task that goes to its worker."""
        self._open[open_task.task_id] = open_task
        self._by_worker[open_task.worker_id].add(open_task.task_id)
        self._used[open_task.worker_id] += open_task.task.num_replicas
        self._touched.add(open_task.worker_id)
        if open_task.task.kind is Kind.TRAINING:
            self._by_group[open_task.task.group_id].add(open_task.task_id)

    def end(self, task_id: str, replica: int) -> OpenTask | None:
        """One replica of a task has its sample; returns the task if it was open."""
        open_task = self._open.get(task_id)
        if open_task is None or replica not in open_task.remaining:
            return None
        open_task.remaining.discard(replica)
        if not open_task.remaining:
            self._forget(open_task)
        return open_task

    def lose(self, task_id: str) -> OpenTask | None:
        """Free the slots of a task, whatever samples are missing; returns it if it was open."""
        open_task = self._open.get(task_id)
        if open_task is not None:
            self._forget(open_task)
        return open_task

    def _forget(self, open_task: OpenTask) -> None:
        del self._open[open_task.task_id]
        self._used[open_task.worker_id] -= open_task.task.num_replicas
        self._touched.add(open_task.worker_id)
        self._by_worker[open_task.worker_id].discard(open_task.task_id)
        if open_task.task.kind is Kind.TRAINING:
            of_group = self._by_group[open_task.task.group_id]
            of_group.discard(open_task.task_id)
            if not of_group:
                del self._by_group[open_task.task.group_id]

    def get(self, task_id: str) -> OpenTask | None:
        """The open task of that id, or None."""
        return self._open.get(task_id)

    def of_worker(self, worker_id: str) -> list[OpenTask]:
        """Open tasks of a worker, oldest first."""
        open_tasks = (self._open[task_id] for task_id in self._by_worker.get(worker_id, ()))
        return sorted(open_tasks, key=lambda open_task: sequence_of(open_task.task_id))

    def ids_of_worker(self, worker_id: str) -> AbstractSet[str]:
        """Ids of the open tasks of a worker."""
        return self._by_worker.get(worker_id, _no_ids)

    def num_of_group(self, group_id: int) -> Counter[str]:
        """Replicas of a group that open training tasks make, by worker."""
        held: Counter[str] = Counter()
        for task_id in self._by_group.get(group_id, ()):
            open_task = self._open[task_id]
            held[open_task.worker_id] += open_task.task.num_replicas
        return held

    def num_used(self, worker_id: str) -> int:
        """Slots taken at a worker."""
        return self._used.get(worker_id, 0)

    def __len__(self) -> int:
        return len(self._open)

    def newest_first(self) -> Iterator[OpenTask]:
        """Every open task, against the order of issue."""
        return reversed(self._open.values())

    @property
    def num_rollouts(self) -> int:
        """Rollouts of open tasks that have no sample yet."""
        return sum(len(open_task.remaining) for open_task in self._open.values())

    def all(self) -> list[OpenTask]:
        """Every open task, in order of issue."""
        return list(self._open.values())


class FreeSlots:
    """Workers by free slots: a choice costs little, and so does a change, however many there are."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._candidates: dict[str, Candidate] = {}
        # By free slots, then by id: the choice does not depend on the order in which workers are given.
        self._ascending: list[tuple[int, str]] = []
        self.num_slots = 0
        """Free slots of all workers."""
        for candidate in candidates:
            self.put(candidate.worker_id, candidate)

    @property
    def is_empty(self) -> bool:
        """Whether every slot is taken."""
        return not self._candidates

    def put(self, worker_id: str, candidate: Candidate | None) -> None:
        """A worker has these free slots now; None: it can take nothing."""
        before = self._candidates.pop(worker_id, None)
        if before is not None:
            del self._ascending[bisect_left(self._ascending, (before.num_slots, worker_id))]
            self.num_slots -= before.num_slots
        if candidate is not None and candidate.num_slots > 0:
            self._candidates[worker_id] = candidate
            insort(self._ascending, (candidate.num_slots, worker_id))
            self.num_slots += candidate.num_slots

    def choose(
        self, *, num_slots: int, min_version: int, excluded: Container[str] = (), is_pinned: bool = False
    ) -> str | None:
        """The worker with the most free slots among those that serve the version, or None: the task waits.

        A task that needs more slots than any worker has goes to one that is idle. One that `is_pinned` goes to a worker
        that serves just this version and swaps in no other: one that still fetches makes its tokens before the swap.
        """
        for num_free, worker_id in reversed(self._ascending):
            candidate = self._candidates[worker_id]
            has_room = num_free >= num_slots or candidate.is_idle
            serves = candidate.served_version >= min_version
            if is_pinned:
                serves = candidate.is_serving and candidate.served_version == min_version
            if has_room and serves and worker_id not in excluded:
                return worker_id
        return None

    def take(self, worker_id: str, num_slots: int) -> None:
        """Take slots of a worker for a task."""
        candidate = self._candidates[worker_id]
        left = Candidate(
            worker_id=worker_id,
            num_slots=candidate.num_slots - num_slots,
            served_version=candidate.served_version,
            is_serving=candidate.is_serving,
        )
        self.put(worker_id, left)


def full_of_group(
    num_held: Mapping[str, int],
    *,
    num_workers: int,
    num_replicas: int,
    num_redundant: int,
    num_slots: int = 1,
) -> frozenset[str]:
    """The workers that may not take `num_slots` more replicas of a group, given how many each of `num_workers` holds.

    Where a group has redundant replicas, no worker holds more of them than are redundant: the others can complete the
    group without it, however slow it is. Without redundancy, or where the others could not hold the group, all may.
    """
    if not num_redundant or (num_workers - 1) * num_redundant < num_replicas:
        return frozenset()
    return frozenset(worker_id for worker_id, num in num_held.items() if num + num_slots > num_redundant)


def next_in_turn(candidates: Iterable[Candidate], last: str | None) -> str | None:
    """The worker whose id follows `last`, around the circle: static scheduling, whatever load anybody has.

    None when there is no worker.
    """
    worker_ids = sorted(candidate.worker_id for candidate in candidates)
    later = (worker_id for worker_id in worker_ids if last is None or worker_id > last)
    return next(later, worker_ids[0] if worker_ids else None)
