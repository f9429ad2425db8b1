"""The tasks whose samples a worker owes: held, or started. Pure.

A task is started once a slot is free and the version it needs is served. It then generates, is scored, and ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from producers.rollout.actions import (
    Action,
    End,
    Ending,
    Interrupt,
    Start,
    expired,
    failed,
    version_gone,
)
from producers.rollout.outcomes import replicas_of
from schemas import Kind, RolloutTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from producers.rollout.slots import Slots

_most_seen_ids = 1 << 16


@dataclass(slots=True, eq=False)
class _OpenTask:
    """A task without all its samples.

    It runs from `started_at` on, and began under `first_version`; `ending` is set when it shall not finish. A suspended
    one is out of the engine until a version is loaded.
    """

    task: RolloutTask
    num_missing: int
    num_generating: int
    started_at: float = 0.0
    first_version: int = -1
    ending: Ending | None = None
    is_suspended: bool = False
    num_suspensions: int = 0


class OpenTasks:
    """Tasks of one worker by what has become of them. `clock` gives monotonic seconds."""

    def __init__(self, slots: Slots, clock: Callable[[], float]) -> None:
        self._slots = slots
        self._clock = clock
        self._seen: dict[str, None] = {}
        self._started: dict[str, _OpenTask] = {}
        self._held: dict[str, _OpenTask] = {}
        self._held_pinned: dict[str, _OpenTask] = {}

    @property
    def ids(self) -> list[str]:
        """Tasks without their samples, held and started."""
        return [*self._started, *self._held_pinned, *self._held]

    @property
    def first_versions(self) -> dict[str, int]:
        """The version under which each started training task began."""
        return {
            task_id: entry.first_version
            for task_id, entry in self._started.items()
            if entry.task.kind is Kind.TRAINING
        }

    def took_over(self, task_id: str, first_version: int) -> None:
        """A started task has turns that are older than its start."""
        entry = self._started.get(task_id)
        if entry is not None:
            entry.first_version = min(entry.first_version, first_version)

    @property
    def pinned_versions(self) -> set[int]:
        """Versions that must be served for tokens that are still to come."""
        generating = (e for task_id, e in self._started.items() if self._slots.is_generating(task_id))
        unfinished = (*self._held_pinned.values(), *generating)
        return {e.task.pinned_version for e in unfinished if e.task.pinned_version is not None}

    def ending_of(self, task_id: str) -> Ending | None:
        """Why a started task shall not finish, or None."""
        entry = self._started.get(task_id)
        return None if entry is None else entry.ending

    def request_ids_of(self, task_id: str) -> list[str]:
        """Engine requests of a started task."""
        entry = self._started.get(task_id)
        return [] if entry is None else [replica.request_id for replica in replicas_of(entry.task)]

    def is_new(self, task_id: str) -> bool:
        """Whether a task of that id is seen for the first time; ask once.

        A record may be read twice after a reassignment, and anybody may be able to write a copy.
        """
        if task_id in self._seen:
            return False
        self._seen[task_id] = None
        if len(self._seen) > _most_seen_ids:
            del self._seen[next(iter(self._seen))]
        return True

    def forget_seen(self) -> None:
        """Begin to read another grant's tasks."""
        self._seen.clear()

    def hold(self, task: RolloutTask) -> None:
        """Keep a task until it may start."""
        held = self._held if task.pinned_version is None else self._held_pinned
        held[task.task_id] = _OpenTask(task, task.num_replicas, task.num_replicas)

    def start_ready(self, served: int, *, pinned: bool) -> list[Action]:
        """Start the held tasks, pinned ones or the others, that the served version and the free slots allow."""
        held = self._held_pinned if pinned else self._held
        actions: list[Action] = []
        for entry in list(self._ready(held, served)):
            del held[entry.task.task_id]
            entry.started_at = self._clock()
            entry.first_version = served
            self._started[entry.task.task_id] = entry
            actions.append(Start(entry.task))
        return actions

    def _ready(self, held: dict[str, _OpenTask], served: int) -> Iterator[_OpenTask]:
        """In order of arrival, until one does not fit; each takes its slots."""
        for entry in held.values():
            if self._slots.is_full:
                return
            # One that waits for a newer version is passed over: it must not hold up what could run now.
            if not _may_start(entry.task, served):
                continue
            # One with more replicas than free slots is not passed over, or small tasks would keep it waiting for ever.
            if not self._slots.fits(entry.task.num_replicas):
                return
            self._slots.take(entry.task.task_id, entry.task.num_replicas)
            yield entry

    def replica_generated(self, task_id: str) -> None:
        """The tokens of one more replica of a started task are there, or none will come any more."""
        entry = self._started[task_id]
        entry.num_generating -= 1
        if entry.num_generating == 0:
            self._slots.generated(task_id)

    def replica_ended(self, task_id: str) -> None:
        """The sample of one more replica is on its way, after its tokens were told of."""
        entry = self._started[task_id]
        entry.num_missing -= 1
        assert entry.num_generating <= entry.num_missing, f"{task_id} ends a replica before its tokens"
        if entry.num_missing == 0:
            del self._started[task_id]
            self._slots.ended(task_id)

    def end_one(self, task_id: str, ending: Ending) -> list[Action]:
        """End a held task, or interrupt a started one; nothing for one that is unknown or ends already."""
        for held in (self._held, self._held_pinned):
            if task_id in held:
                return [End(held.pop(task_id).task, ending)]
        entry = self._started.get(task_id)
        if entry is None or entry.ending is not None:
            return []
        entry.ending = ending
        return [Interrupt(task_id)]

    def end_all(self, ending: Ending) -> list[Action]:
        """End every task, held or started."""
        return [action for task_id in self.ids for action in self.end_one(task_id, ending)]

    def end_overdue(self) -> list[Action]:
        """End started tasks that took longer than they may, scoring included."""
        now = self._clock()
        return [
            action
            for task_id, entry in list(self._started.items())
            if now - entry.started_at > entry.task.timeout_seconds
            for action in self.end_one(
                task_id, failed("RolloutTimeout", f"not finished within {entry.task.timeout_seconds:g} s")
            )
        ]

    def end_overtaken(self, served: int) -> list[Action]:
        """End held tasks that are pinned to a version before the served one."""
        overtaken = [e.task for e in self._held_pinned.values() if (e.task.pinned_version or 0) < served]
        for task in overtaken:
            del self._held_pinned[task.task_id]
        return [End(task, expired(version_gone)) for task in overtaken]

    def put_off(self, seconds: float) -> None:
        """Give started tasks the time back in which this process did not run: it says nothing about them."""
        for entry in self._started.values():
            entry.started_at += seconds

    def suspend(self, max_suspensions: int) -> tuple[str, ...]:
        """Note that what generates leaves the engine; returns the tasks, but for those kept after so many times."""
        suspended = [
            task_id for task_id, entry in self._started.items() if self._may_suspend(entry, max_suspensions)
        ]
        for task_id in suspended:
            self._started[task_id].is_suspended = True
            self._started[task_id].num_suspensions += 1
        return tuple(suspended)

    def _may_suspend(self, entry: _OpenTask, max_suspensions: int) -> bool:
        may_again = entry.num_suspensions < max_suspensions and not entry.is_suspended
        return may_again and entry.ending is None and self._slots.is_generating(entry.task.task_id)

    def resume(self) -> None:
        """Note that the engine has every suspended task again."""
        for entry in self._started.values():
            entry.is_suspended = False


def _may_start(task: RolloutTask, served: int) -> bool:
    if task.pinned_version is not None:
        return task.pinned_version == served
    return task.min_version <= served
