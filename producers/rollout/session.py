"""The rollout worker's rules as a state machine: grants, fences, open tasks, pinned evaluations, reloads.

No Kafka, no asyncio, no engine: every method takes one thing that happened and returns what to do about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from producers.rollout.actions import (
    Action,
    End,
    Leave,
    Load,
    ReadTasks,
    StopReading,
    Swap,
    cancelled,
    expired,
    refusal,
)
from producers.rollout.open_tasks import OpenTasks
from producers.rollout.slots import Slots
from producers.rollout.versions import KnownVersions
from rollog.rules.control_log import ControlLog
from rollog.rules.reading import control_types
from schemas import (
    Cancel,
    Fence,
    Grant,
    Record,
    Revoke,
    RolloutTask,
    RunClosed,
    Stop,
    TaskBatch,
    WeightVersion,
    WorkerState,
    tasks_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from producers.rollout.actions import Ending

ReloadMode = Literal["keep", "drain", "abort"]


class WorkerSession:
    """Everything one worker incarnation knows about the run. `clock` gives monotonic seconds.

    | of     | states                                                                                         |
    | ---    | ---                                                                                            |
    | task   | held (no free slot, or not its version) -> generating -> scored, beside its slot -> ended      |
    | grant  | none -> granted -> revoked or replaced: its open tasks expire                                  |
    | worker | starting -> reloading -> serving <-> reloading; reloading -> load failed -> reloading; leaving |
    | reload | fetching -> with `drain` until no rollout generates -> swapping -> loaded                      |

    A reload begins when a newer version is committed and no task that is held or generates is pinned to the served one.
    From then on no task is started until the version is loaded, but for pinned ones while a drain waits. What is only
    scored holds no reload up: its tokens are made.

    Example with two slots, `reload="keep"`, version 3 served. Tasks A, B and C arrive: A and B generate, C is held for
    a slot. Version 4 is committed: Load(4). A is generated: it is scored, and its slot is free, but C is not started
    in mid-reload. The file is fetched: Swap(4); B stays in the engine, and its tokens from here on are of version 4.
    Loaded: C starts under version 4. An evaluation pinned to version 3 that arrives now ends as expired: this worker
    cannot go back.

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
        max_scoring: int = 64,
    ) -> None:
        self.worker_id = worker_id
        self.state = WorkerState.STARTING
        self.grant: Grant | None = None
        self.tasks_position = 0
        self.error: str | None = None
        self._load_attempts = load_attempts
        self._reward_function = reward_function
        self._reload = reload
        self._max_resumes = max_resumes
        self._control = ControlLog(num_task_partitions)
        self._fence_epoch = 0
        self._slots = Slots(capacity, max_scoring)
        self._tasks = OpenTasks(self._slots, clock)
        self._versions = KnownVersions()
        self._is_ready = False
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
    def phase(self) -> str:
        """What is done before the first version is in service; empty from then on."""
        if self.is_leaving or self.served is not None:
            return ""
        if not self._is_ready:
            return "starting its engine"
        if self.state is WorkerState.RELOADING:
            return "loading weights"
        return "waiting for version 0"

    @property
    def served(self) -> WeightVersion | None:
        """The version in service."""
        return self._versions.served

    @property
    def open_task_ids(self) -> list[str]:
        """Tasks without their samples, held and started."""
        return self._tasks.ids

    @property
    def first_versions(self) -> dict[str, int]:
        """The version under which each started training task began."""
        return self._tasks.first_versions

    @property
    def num_running(self) -> int:
        """Slots in use."""
        return self._slots.num_used

    @property
    def num_generating(self) -> int:
        """Slots in use whose tokens are still being made."""
        return self._slots.num_generating

    @property
    def num_scoring(self) -> int:
        """Rollouts that are being scored, their slots free."""
        return self._slots.num_scoring

    @property
    def is_leaving(self) -> bool:
        """Whether nothing is started any more."""
        return self.state is WorkerState.LEAVING

    def digest_of(self, version: int) -> str:
        """What segments carry of a version that was put in service."""
        return self._versions.digest_of(version)

    def contradicts(self, version: int, digest: str) -> bool:
        """Whether a version is known, with other weights than these."""
        return self._versions.contradicts(version, digest)

    def took_over(self, task_id: str, first_version: int, digests: Mapping[int, str]) -> None:
        """A started rollout is served a turn of an earlier attempt, whose oldest token is of this version."""
        self._tasks.took_over(task_id, first_version)
        self._versions.learn_digests(digests)

    def ending_of(self, task_id: str) -> Ending | None:
        """Why a started task shall not finish, or None."""
        return self._tasks.ending_of(task_id)

    def request_ids_of(self, task_id: str) -> list[str]:
        """Engine requests of a started task."""
        return self._tasks.request_ids_of(task_id)

    def on_control(self, record: Record) -> list[Action]:
        """React to a record of `control`; what an older dispatcher still writes there, or nobody can have, is void."""
        if not isinstance(record, control_types) or not self._control.add(record):
            return []
        match record:
            case Grant(worker_id=self.worker_id) as grant:
                return self._on_grant(grant)
            case Revoke() as revoke if self._holds(revoke.grant_id):
                self.grant = None
                return [StopReading(), *self._tasks.end_all(expired("revoked"))]
            case RunClosed():
                return self.leave("the run is closed")
        return []

    def on_task(self, record: Record, offset: int) -> list[Action]:
        """React to a record of the granted tasks partition; tasks of an epoch before its newest fence are void."""
        self.tasks_position = offset + 1
        match record:
            case Fence(epoch=epoch):
                self._fence_epoch = max(self._fence_epoch, epoch)
            case RolloutTask() | TaskBatch():
                valid = filter(self._is_valid, tasks_in(record))
                return [action for task in valid for action in self._on_task(task)]
            case Cancel() as cancel if self._is_valid(cancel):
                return [
                    *self._tasks.end_one(cancel.task_id, cancelled(cancel.reason.value)),
                    *self._advance(),
                ]
            case Stop() as stop if self._is_valid(stop):
                return self.leave(stop.reason)
        return []

    def on_undecodable_task(self, offset: int) -> None:
        """Pass over a record of the granted tasks partition that cannot be decoded."""
        self.tasks_position = offset + 1

    def on_weights(self, notice: WeightVersion) -> list[Action]:
        """React to a committed version: reload, now or as soon as pinned tasks allow it."""
        return self._advance() if self._versions.add(notice) else []

    def why_refused_weights(self, notice: WeightVersion) -> str | None:
        """Why a notice cannot be the trainer's; None where it can."""
        return self._versions.refused(notice)

    def disown(self, notice: WeightVersion) -> list[Action]:
        """Go on without a version that the ledger does not know."""
        self._versions.disown(notice)
        self._fetched = None
        if self.state is WorkerState.RELOADING:
            self.state = WorkerState.STARTING if self.served is None else WorkerState.SERVING
        return self._advance()

    def engine_ready(self) -> list[Action]:
        """Begin to load: the engine can take weights now."""
        self._is_ready = True
        return self._advance()

    def fetched(self, notice: WeightVersion) -> list[Action]:
        """Go on with a reload: the version's file is here, with the bytes that were committed."""
        self._fetched = notice
        self._may_fetch_newer = self.num_generating > 0
        return self._advance()

    def loaded(self, notice: WeightVersion) -> list[Action]:
        """Start what waited: the engine serves this version."""
        self._tasks.resume()
        self._versions.loaded(notice)
        self.error = None
        self._num_failed_loads = 0
        if self.is_leaving:
            return []
        self.state = WorkerState.SERVING
        return self._advance()

    def load_failed(self, notice: WeightVersion, message: str) -> list[Action]:
        """Start nothing more until `retry_load`; leave after `load_attempts` failures in a row."""
        self._versions.load_failed(notice)
        self._fetched = None
        self.error = f"version {notice.version} could not be loaded: {message}"
        self._num_failed_loads += 1
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

    def replica_generated(self, task_id: str) -> list[Action]:
        """The tokens of one more replica are there, or none will come; with the last one a task may free its slots."""
        self._tasks.replica_generated(task_id)
        return self._advance()

    def replica_ended(self, task_id: str) -> list[Action]:
        """One more sample of a started task is on its way, after `replica_generated` was told of it."""
        self._tasks.replica_ended(task_id)
        return self._advance()

    def was_suspended(self, seconds: float) -> None:
        """Give running tasks the time back in which this process did not run: it says nothing about them."""
        self._tasks.put_off(seconds)

    def end_overdue(self) -> list[Action]:
        """End running tasks that took longer than they may."""
        return self._tasks.end_overdue()

    def leave(self, reason: str, error: str | None = None) -> list[Action]:
        """End all open tasks as cancelled and begin nothing more."""
        if self.is_leaving:
            return []
        self.state = WorkerState.LEAVING
        return [*self._tasks.end_all(cancelled(reason)), Leave(reason, error)]

    def _holds(self, grant_id: str) -> bool:
        return self.grant is not None and self.grant.grant_id == grant_id

    def _is_valid(self, record: RolloutTask | Cancel | Stop) -> bool:
        return self._holds(record.grant_id) and record.epoch >= self._fence_epoch

    def _on_grant(self, grant: Grant) -> list[Action]:
        if self._holds(grant.grant_id) or self.is_leaving:
            return []
        # The dispatcher has declared the tasks of the grant before lost; whoever goes on with them works for nobody.
        actions = self._tasks.end_all(expired("new_grant")) if self.grant is not None else []
        self.grant = grant
        self.tasks_position = grant.start_offset
        # Fences count per partition, and this is another one, or a later part of the same.
        self._fence_epoch = 0
        self._tasks.forget_seen()
        return [*actions, ReadTasks(grant.partition, grant.start_offset)]

    def _on_task(self, task: RolloutTask) -> list[Action]:
        if not self._tasks.is_new(task.task_id):
            return []
        if self.is_leaving:
            return [End(task, cancelled("leaving"))]
        if ending := refusal(task, self._reward_function):
            return [End(task, ending)]
        self._tasks.hold(task)
        return self._advance()

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
        served = self._versions.served_version
        actions = [*self._tasks.end_overtaken(served), *self._tasks.start_ready(served, pinned=True)]
        if self._reload != "drain" or not self._versions.has_newer:
            actions += self._tasks.start_ready(served, pinned=False)
        return [*actions, *self._load_newer()]

    def _go_on_reloading(self) -> list[Action]:
        fetched = self._fetched
        if fetched is None:
            return []
        if self._reload != "drain":
            return [self._swap(fetched)]
        # What is pinned to the version that still is in service need not be lost.
        served = self.served
        actions = [] if served is None else self._tasks.start_ready(served.version, pinned=True)
        if self.num_generating:
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
        return Swap(notice, self._tasks.suspend(self._max_resumes))

    def _load_target(self) -> WeightVersion | None:
        return self._versions.target(self._tasks.pinned_versions) if self._versions.has_newer else None

    def _load_newer(self) -> list[Action]:
        target = self._load_target()
        return [] if target is None else [self._load(target)]

    def _load(self, target: WeightVersion) -> Load:
        self.state = WorkerState.RELOADING
        self._versions.load_begins(target)
        return Load(target)
