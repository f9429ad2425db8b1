"""The rollout worker's rules as a state machine: grants, fences, open tasks, pinned evaluations, reloads.

No Kafka, no asyncio, no engine: every method takes one thing that happened and returns what to do about it.
"""

from __future__ import annotations

from enum import Enum, auto
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


class _Reload(Enum):
    """How far the reload is that is under way; one at a time."""

    NONE = auto()
    FETCHING = auto()
    FETCHED = auto()
    SWAPPING = auto()
    FAILED = auto()


class WorkerSession:
    """Everything one worker incarnation knows about the run. `clock` gives monotonic seconds.

    | of     | states                                                                                             |
    | ---    | ---                                                                                                |
    | task   | held (no free slot, or not its version) -> generating -> scored, beside its slot -> ended          |
    | grant  | none -> granted -> revoked or replaced: its open tasks expire                                      |
    | worker | starting -> reloading -> serving <-> reloading; reloading -> load failed -> reloading; leaving     |
    | reload | none -> fetching -> fetched -> swapping -> none; fetching or swapping -> failed -> none (retry)    |

    A newer version is fetched in the shadow of the served one: tasks are started as before. The worker stands still for
    the swap alone, which follows the fetch at once, but for two waits: until all tokens are made that are pinned to the
    served version, and with `drain` until no rollout generates. In a drain only pinned tasks are started. What is only
    scored holds no swap up: its tokens are made.

    Versions that are committed meanwhile are passed over but for the newest. What is fetched is loaded all the same, if
    it need not wait: a worker whose fetches take longer than a training step would never load anything otherwise. If it
    has to wait, the newer version is fetched in its place.

    A fetch that fails leaves the served version in service. A swap that fails leaves none: the engine may hold half of
    each.

    Example with two slots, `reload="keep"`, version 3 served. Tasks A, B and C arrive: A and B generate, C is held for
    a slot. Version 4 is committed: Load(4). A is generated: C starts in its slot, under version 3. The file is
    fetched: Swap(4); B and C stay in the engine, and their tokens from here on are of version 4. D arrives: it is held.
    Loaded: D starts as soon as a slot is free, under version 4. An evaluation pinned to version 3 that arrives now ends
    as expired: this worker cannot go back.

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
        self.grant: Grant | None = None
        self.tasks_position = 0
        self.error: str | None = None
        self._load_attempts = load_attempts
        self._reward_function = reward_function
        self._mode = reload
        self._max_resumes = max_resumes
        self._control = ControlLog(num_task_partitions)
        self._fence_epoch = 0
        self._slots = Slots(capacity, max_scoring)
        self._tasks = OpenTasks(self._slots, clock)
        self._versions = KnownVersions()
        self._is_ready = False
        self._is_leaving = False
        self._num_failed_loads = 0
        self._reload = _Reload.NONE
        self._fetched: WeightVersion | None = None
        self._is_draining = False

    @property
    def state(self) -> WorkerState:
        """What heartbeats say. Who fetches a version while another one is served is serving."""
        if self._is_leaving:
            return WorkerState.LEAVING
        if self._reload is _Reload.SWAPPING or self._is_draining:
            return WorkerState.RELOADING
        if self.served is not None:
            return WorkerState.SERVING
        match self._reload:
            case _Reload.NONE:
                return WorkerState.STARTING
            case _Reload.FAILED:
                return WorkerState.LOAD_FAILED
        return WorkerState.RELOADING

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
        """What is done before the first version is in service; empty from then on, and after a failed load."""
        if self.is_leaving or self.served is not None or self._reload is _Reload.FAILED:
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
        return self._is_leaving

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
        """React to a committed version: fetch it, unless another one is on its way."""
        return self._advance() if self._versions.add(notice) else []

    def why_refused_weights(self, notice: WeightVersion) -> str | None:
        """Why a notice cannot be the trainer's; None where it can."""
        return self._versions.refused(notice)

    def disown(self, notice: WeightVersion) -> list[Action]:
        """Go on without a version that the ledger does not know."""
        self._versions.disown(notice)
        self._end_reload()
        actions = self._advance()
        if self.served is not None and self._reload is _Reload.NONE:
            # What failed was this notice: nothing is left to be loaded.
            self.error = None
            self._num_failed_loads = 0
        return actions

    def engine_ready(self) -> list[Action]:
        """Begin to load: the engine can take weights now."""
        self._is_ready = True
        return self._advance()

    def fetched(self, notice: WeightVersion) -> list[Action]:
        """Go on with a reload: the version is here, with the bytes that were committed."""
        self._reload = _Reload.FETCHED
        self._fetched = notice
        self._is_draining = self._mode == "drain" and self.served is not None
        return self._advance()

    def fetch_failed(self, notice: WeightVersion, message: str) -> list[Action]:
        """Serve on until `retry_load`; leave after `load_attempts` failures in a row."""
        self._versions.fetch_failed(notice)
        return self._failed(f"version {notice.version} could not be fetched: {message}")

    def fetch_again(self) -> list[Action]:
        """Fetch what is the version to fetch by now: the one that was asked for has been passed on this machine."""
        self._end_reload()
        return self._advance()

    def loaded(self, notice: WeightVersion) -> list[Action]:
        """Start what waited: the engine serves this version."""
        self._tasks.resume()
        self._versions.loaded(notice)
        self._end_reload()
        self.error = None
        self._num_failed_loads = 0
        return self._advance()

    def load_failed(self, notice: WeightVersion, message: str) -> list[Action]:
        """Start nothing more until a version is loaded; leave after `load_attempts` failures in a row."""
        self._versions.load_failed(notice)
        return self._failed(f"version {notice.version} could not be loaded: {message}")

    def retry_load(self) -> list[Action]:
        """Try again after a reload that failed."""
        if self._reload is not _Reload.FAILED:
            return []
        self._end_reload()
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
        self._is_leaving = True
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

    def _failed(self, error: str) -> list[Action]:
        self._end_reload()
        self._reload = _Reload.FAILED
        self.error = error
        self._num_failed_loads += 1
        if self._num_failed_loads >= self._load_attempts:
            return self.leave(f"{self._num_failed_loads} attempts to load weights failed", error)
        return self._advance()

    def _end_reload(self) -> None:
        self._reload = _Reload.NONE
        self._fetched = None
        self._is_draining = False

    def _advance(self) -> list[Action]:
        """Whatever became possible: end what came too late, start what is ready, load what is newer."""
        if self.is_leaving or not self._is_ready or self._reload is _Reload.SWAPPING:
            return []
        served = self.served
        actions = [] if served is None else self._advance_pinned(served.version)
        if self._fetched is not None and not self._has_to_wait():
            # Before any other task is started: what starts in this moment starts under the new version.
            return [*actions, self._swap(self._fetched)]
        if served is not None and not self._is_draining:
            actions += self._tasks.start_ready(served.version, pinned=False)
        return [*actions, *self._fetch_newer()]

    def _advance_pinned(self, served: int) -> list[Action]:
        """Pinned tasks go first: a swap waits for them."""
        return [*self._tasks.end_overtaken(served), *self._tasks.start_ready(served, pinned=True)]

    def _has_to_wait(self) -> bool:
        """Whether the served version cannot be given up yet."""
        served = self.served
        if served is None:
            return False
        is_drained = self._mode != "drain" or not self.num_generating
        # No worker goes back to a version: tasks pinned to the served one are generated first.
        return not is_drained or served.version in self._tasks.pinned_versions

    def _fetch_newer(self) -> list[Action]:
        if self._reload not in (_Reload.NONE, _Reload.FETCHED):
            return []
        target = self._versions.target(self._tasks.pinned_versions)
        if target is None or target == self._fetched:
            return []
        self._reload, self._fetched = _Reload.FETCHING, None
        self._versions.load_begins(target)
        return [Load(target)]

    def _swap(self, notice: WeightVersion) -> Swap:
        self._reload, self._fetched = _Reload.SWAPPING, None
        if self._mode != "abort":
            return Swap(notice)
        return Swap(notice, self._tasks.suspend(self._max_resumes))
