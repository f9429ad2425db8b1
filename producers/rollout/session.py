"""The rollout worker's rules as a state machine: grants, fences, open tasks, pinned evaluations, reloads.

No Kafka, no asyncio, no engine: every method takes one thing that happened and returns what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from producers.rollout.actions import (
    Action,
    End,
    Ending,
    Interrupt,
    Leave,
    Load,
    ReadTasks,
    Start,
    StopReading,
    Swap,
    cancelled,
    expired,
    failed,
    refusal,
    version_gone,
)
from producers.rollout.outcomes import replicas_of
from rollog.rules.control_log import ControlLog
from rollog.rules.reading import control_types
from schemas import (
    Cancel,
    Fence,
    Grant,
    Kind,
    Record,
    Revoke,
    RolloutTask,
    RunClosed,
    Stop,
    WeightVersion,
    WorkerState,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ReloadMode = Literal["keep", "drain", "abort"]

_most_seen_ids = 1 << 16
_most_digests = 4096


@dataclass(slots=True, eq=False)
class _OpenTask:
    """A task without all its samples.

    It runs from `started_at` on, and began under `first_version`; `ending` is set when it shall not finish. A suspended
    one is out of the engine until a version is loaded.
    """

    task: RolloutTask
    started_at: float = 0.0
    first_version: int = -1
    num_missing: int = 0
    ending: Ending | None = None
    is_suspended: bool = False
    num_suspensions: int = 0


class WorkerSession:
    """Everything one worker incarnation knows about the run. `clock` gives monotonic seconds.

    | of     | states                                                                                         |
    | ---    | ---                                                                                            |
    | task   | held (no free slot, or not its version) -> running -> ended                                    |
    | grant  | none -> granted -> revoked or replaced: its open tasks expire                                  |
    | worker | starting -> reloading -> serving <-> reloading; reloading -> load failed -> reloading; leaving |
    | reload | fetching -> with `drain` until no rollout runs -> swapping -> loaded                           |

    A reload begins when a newer version is committed and no open task is pinned to the served one. From then on no task
    is started until the version is loaded, but for pinned ones while a drain waits.

    Example with two slots, `reload="keep"`, version 3 served. Tasks A, B and C arrive: A and B run, C is held for a
    slot. Version 4 is committed: Load(4). A ends: its slot is free, but C is not started in mid-reload. The file is
    fetched: Swap(4); B stays in the engine, and its tokens from here on are of version 4. Loaded: C starts under
    version 4. An evaluation pinned to version 3 that arrives now ends as expired: this worker cannot go back.

    `reload` says what becomes of running rollouts when a newer version is there. With `abort` each of them is
    suspended at most `max_resumes` times and kept in the engine after that, so that versions in quick succession
    cannot keep it from its end.
    """

    def __init__(
        self,
        worker_id: str,
        *,
        capacity: int,
        load_attempts: int,
        reward_function: str,
        clock: Callable[[], float],
        reload: ReloadMode = "keep",
        max_resumes: int = 8,
        num_task_partitions: int = 1,
    ) -> None:
        self.worker_id = worker_id
        self.state = WorkerState.STARTING
        self.grant: Grant | None = None
        self.tasks_position = 0
        self.served: WeightVersion | None = None
        self.error: str | None = None
        self._capacity = capacity
        self._load_attempts = load_attempts
        self._reward_function = reward_function
        self._clock = clock
        self._reload = reload
        self._max_resumes = max_resumes
        self._control = ControlLog(num_task_partitions)
        self._fence_epoch = 0
        self._seen: dict[str, None] = {}
        self._running: dict[str, _OpenTask] = {}
        self._held: dict[str, _OpenTask] = {}
        self._held_pinned: dict[str, _OpenTask] = {}
        self._num_running = 0
        self._is_ready = False
        self._newest: WeightVersion | None = None
        self._notices: dict[int, WeightVersion] = {}
        self._digests: dict[int, str] = {}
        self._num_failed_loads = 0
        self._fetched: WeightVersion | None = None
        self._may_fetch_newer = False

    @property
    def epoch(self) -> int:
        """The newest dispatcher's, as `control` has it."""
        return self._control.epoch

    def why_refused(self, record: Record) -> str | None:
        """Why a record of `control` cannot be one of the run's; None where it can."""
        if not isinstance(record, control_types):
            return f"a {type(record).__name__} does not belong on this topic"
        return self._control.refused(record)

    @property
    def open_task_ids(self) -> list[str]:
        """Tasks without their samples, held and running."""
        return [*self._running, *self._held_pinned, *self._held]

    @property
    def first_versions(self) -> dict[str, int]:
        """The version under which each running training task began."""
        return {
            task_id: entry.first_version
            for task_id, entry in self._running.items()
            if entry.task.kind is Kind.TRAINING
        }

    @property
    def num_running(self) -> int:
        """Slots in use."""
        return self._num_running

    @property
    def is_leaving(self) -> bool:
        """Whether nothing is started any more."""
        return self.state is WorkerState.LEAVING

    def digest_of(self, version: int) -> str:
        """What segments carry of a version that was put in service."""
        return self._digests[version]

    def ending_of(self, task_id: str) -> Ending | None:
        """Why a running task shall not finish, or None."""
        entry = self._running.get(task_id)
        return None if entry is None else entry.ending

    def request_ids_of(self, task_id: str) -> list[str]:
        """Engine requests of a running task."""
        entry = self._running.get(task_id)
        return [] if entry is None else [replica.request_id for replica in replicas_of(entry.task)]

    def on_control(self, record: Record) -> list[Action]:
        """React to a record of `control`; what an older dispatcher still writes there, or nobody can have, is void."""
        if not isinstance(record, control_types) or not self._control.add(record):
            return []
        match record:
            case Grant(worker_id=self.worker_id) as grant:
                return self._on_grant(grant)
            case Revoke() as revoke if self._holds(revoke.grant_id):
                self.grant = None
                return [StopReading(), *self._end_all(expired("revoked"))]
            case RunClosed():
                return self.leave("the run is closed")
        return []

    def on_task(self, record: Record, offset: int) -> list[Action]:
        """React to a record of the granted tasks partition; tasks of an epoch before its newest fence are void."""
        self.tasks_position = offset + 1
        match record:
            case Fence(epoch=epoch):
                self._fence_epoch = max(self._fence_epoch, epoch)
            case RolloutTask() as task if self._is_valid(task):
                return self._on_task(task)
            case Cancel() as cancel if self._is_valid(cancel):
                return [*self._end_one(cancel.task_id, cancelled(cancel.reason.value)), *self._advance()]
            case Stop() as stop if self._is_valid(stop):
                return self.leave(stop.reason)
        return []

    def on_undecodable_task(self, offset: int) -> None:
        """Pass over a record of the granted tasks partition that cannot be decoded."""
        self.tasks_position = offset + 1

    def on_weights(self, notice: WeightVersion) -> list[Action]:
        """React to a committed version: reload, now or as soon as pinned tasks allow it."""
        if self.served is not None and notice.version <= self.served.version:
            return []
        self._notices.setdefault(notice.version, notice)
        if self._newest is None or notice.version > self._newest.version:
            self._newest = notice
        return self._advance()

    def engine_ready(self) -> list[Action]:
        """Begin to load: the engine can take weights now."""
        self._is_ready = True
        return self._advance()

    def fetched(self, notice: WeightVersion) -> list[Action]:
        """Go on with a reload: the version's file is here, with the bytes that were committed."""
        self._fetched = notice
        self._may_fetch_newer = self._num_running > 0
        return self._advance()

    def loaded(self, notice: WeightVersion) -> list[Action]:
        """Start what waited: the engine serves this version."""
        for entry in self._running.values():
            entry.is_suspended = False
        self.served = notice
        self.error = None
        self._num_failed_loads = 0
        self._notices = {
            version: known for version, known in self._notices.items() if version > notice.version
        }
        if self.is_leaving:
            return []
        self.state = WorkerState.SERVING
        return self._advance()

    def load_failed(self, notice: WeightVersion, message: str) -> list[Action]:
        """Start nothing more until `retry_load`; leave after `load_attempts` failures in a row."""
        # The engine may hold half of the new weights: what it made now would be of no version.
        self.served = None
        self._fetched = None
        self.error = f"version {notice.version} could not be loaded: {message}"
        self._num_failed_loads += 1
        self._notices.setdefault(notice.version, notice)
        if self.is_leaving:
            return []
        if self._num_failed_loads >= self._load_attempts:
            return self.leave(f"{self._num_failed_loads} attempts to load weights failed", self.error)
        self.state = WorkerState.LOAD_FAILED
        return []

    def retry_load(self) -> list[Action]:
        """Try again after a failed load."""
        if self.state is not WorkerState.LOAD_FAILED:
            return []
        self.state = WorkerState.STARTING
        return self._advance()

    def replica_ended(self, task_id: str) -> list[Action]:
        """One more sample of a started task is on its way; the slots of a task are free when its last one is."""
        entry = self._running[task_id]
        entry.num_missing -= 1
        if entry.num_missing == 0:
            del self._running[task_id]
            self._num_running -= entry.task.num_replicas
        return self._advance()

    def was_suspended(self, seconds: float) -> None:
        """Give running tasks the time back in which this process did not run: it says nothing about them."""
        for entry in self._running.values():
            entry.started_at += seconds

    def end_overdue(self) -> list[Action]:
        """End running tasks that took longer than they may."""
        now = self._clock()
        return [
            action
            for task_id, entry in list(self._running.items())
            if now - entry.started_at > entry.task.timeout_seconds
            for action in self._end_one(
                task_id, failed("RolloutTimeout", f"not finished within {entry.task.timeout_seconds:g} s")
            )
        ]

    def leave(self, reason: str, error: str | None = None) -> list[Action]:
        """End all open tasks as cancelled and begin nothing more."""
        if self.is_leaving:
            return []
        self.state = WorkerState.LEAVING
        return [*self._end_all(cancelled(reason)), Leave(reason, error)]

    def _holds(self, grant_id: str) -> bool:
        return self.grant is not None and self.grant.grant_id == grant_id

    def _is_valid(self, record: RolloutTask | Cancel | Stop) -> bool:
        return self._holds(record.grant_id) and record.epoch >= self._fence_epoch

    def _on_grant(self, grant: Grant) -> list[Action]:
        if self._holds(grant.grant_id) or self.is_leaving:
            return []
        # The dispatcher has declared the tasks of the grant before lost; whoever goes on with them works for nobody.
        actions = self._end_all(expired("new_grant")) if self.grant is not None else []
        self.grant = grant
        self.tasks_position = grant.start_offset
        # Fences count per partition, and this is another one, or a later part of the same.
        self._fence_epoch = 0
        self._seen.clear()
        return [*actions, ReadTasks(grant.partition, grant.start_offset)]

    def _on_task(self, task: RolloutTask) -> list[Action]:
        # A record may be read twice after a reassignment, and anybody may be able to write a copy.
        if task.task_id in self._seen:
            return []
        self._seen[task.task_id] = None
        if len(self._seen) > _most_seen_ids:
            del self._seen[next(iter(self._seen))]
        if self.is_leaving:
            return [End(task, cancelled("leaving"))]
        if ending := refusal(task, self._reward_function):
            return [End(task, ending)]
        held = self._held if task.pinned_version is None else self._held_pinned
        held[task.task_id] = _OpenTask(task, num_missing=task.num_replicas)
        return self._advance()

    def _end_all(self, ending: Ending) -> list[Action]:
        return [action for task_id in self.open_task_ids for action in self._end_one(task_id, ending)]

    def _end_one(self, task_id: str, ending: Ending) -> list[Action]:
        for held in (self._held, self._held_pinned):
            if task_id in held:
                return [End(held.pop(task_id).task, ending)]
        entry = self._running.get(task_id)
        if entry is None or entry.ending is not None:
            return []
        entry.ending = ending
        return [Interrupt(task_id)]

    def _advance(self) -> list[Action]:
        """Whatever became possible: end what came too late, start what is ready, load what is newer."""
        if self.is_leaving or not self._is_ready:
            return []
        match self.state:
            case WorkerState.SERVING:
                return self._serve()
            case WorkerState.STARTING:
                return self._load_newer()
            case WorkerState.RELOADING:
                return self._go_on_reloading()
        return []

    def _serve(self) -> list[Action]:
        """Pinned tasks go first: a reload waits for them. A drain begins with the newer version's notice."""
        actions = [*self._end_overtaken(), *self._start_ready(self._held_pinned)]
        if self._reload != "drain" or not self._has_newer:
            actions += self._start_ready(self._held)
        return [*actions, *self._load_newer()]

    def _go_on_reloading(self) -> list[Action]:
        fetched = self._fetched
        if fetched is None:
            return []
        if self._reload != "drain":
            return [self._swap(fetched)]
        # What is pinned to the version that still is in service need not be lost.
        actions = self._start_ready(self._held_pinned) if self.served is not None else []
        if self._num_running:
            return actions
        target = self._load_target() or fetched
        if self._may_fetch_newer and target.version != fetched.version:
            self._fetched = None
            return [*actions, self._load(target)]
        return [*actions, self._swap(fetched)]

    def _swap(self, notice: WeightVersion) -> Swap:
        self._fetched = None
        if self._reload != "abort":
            return Swap(notice)
        suspended = {task_id: e for task_id, e in self._running.items() if self._may_suspend(e)}
        for entry in suspended.values():
            entry.is_suspended = True
            entry.num_suspensions += 1
        return Swap(notice, tuple(suspended))

    def _may_suspend(self, entry: _OpenTask) -> bool:
        may_again = entry.num_suspensions < self._max_resumes
        return may_again and not entry.is_suspended and entry.ending is None

    def _end_overtaken(self) -> list[Action]:
        served = self._served_version
        overtaken = [e.task for e in self._held_pinned.values() if (e.task.pinned_version or 0) < served]
        for task in overtaken:
            del self._held_pinned[task.task_id]
        return [End(task, expired(version_gone)) for task in overtaken]

    def _start_ready(self, held: dict[str, _OpenTask]) -> list[Action]:
        """Start the tasks of `held` that the served version and the free slots allow."""
        actions: list[Action] = []
        for entry in self._take_ready(held):
            entry.started_at = self._clock()
            entry.first_version = self._served_version
            self._running[entry.task.task_id] = entry
            self._num_running += entry.task.num_replicas
            actions.append(Start(entry.task))
        return actions

    def _take_ready(self, held: dict[str, _OpenTask]) -> list[_OpenTask]:
        """In order of arrival, until one does not fit."""
        served = self._served_version
        num_running = self._num_running
        taken: list[_OpenTask] = []
        for entry in held.values():
            if num_running >= self._capacity:
                break
            # One that waits for a newer version is passed over: it must not hold up what could run now.
            if not _may_start(entry.task, served):
                continue
            # One with more replicas than free slots is not passed over, or small tasks would keep it waiting for ever.
            # In an idle worker it starts even with more replicas than slots.
            if num_running and num_running + entry.task.num_replicas > self._capacity:
                break
            num_running += entry.task.num_replicas
            taken.append(entry)
        for entry in taken:
            del held[entry.task.task_id]
        return taken

    def _load_target(self) -> WeightVersion | None:
        """The version to load now: the newest, unless open tasks are pinned to what is or comes before it."""
        if self._newest is None or not self._has_newer:
            return None
        unfinished = (*self._held_pinned.values(), *self._running.values())
        pinned = {e.task.pinned_version for e in unfinished if e.task.pinned_version is not None}
        # No worker goes back to a version: tasks pinned to the served one are finished first.
        if self.served is not None and self.served.version in pinned:
            return None
        waited_for = [version for version in pinned if version in self._notices]
        return self._notices[min(waited_for)] if waited_for else self._newest

    @property
    def _has_newer(self) -> bool:
        if self._newest is None:
            return False
        return self.served is None or self._newest.version > self.served.version

    def _load_newer(self) -> list[Action]:
        target = self._load_target()
        return [] if target is None else [self._load(target)]

    def _load(self, target: WeightVersion) -> Load:
        self.state = WorkerState.RELOADING
        # Noted before the first token under this version can arrive.
        self._digests[target.version] = target.digest
        if len(self._digests) > _most_digests:
            del self._digests[next(iter(self._digests))]
        return Load(target)

    @property
    def _served_version(self) -> int:
        assert self.served is not None
        return self.served.version


def _may_start(task: RolloutTask, served: int) -> bool:
    if task.pinned_version is not None:
        return task.pinned_version == served
    return task.min_version <= served
