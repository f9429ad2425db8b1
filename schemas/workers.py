"""Records of the `workers` topic: heartbeats, compacted by key (a worker's id, or the name of a role)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class WorkerState(StrEnum):
    """What a rollout worker is doing."""

    STARTING = "starting"
    SERVING = "serving"
    RELOADING = "reloading"
    LOAD_FAILED = "load_failed"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One heartbeat. `tasks_position` is the next offset of the granted partition the worker would read.

    `first_versions` names the running training tasks, each with the policy version that was served as it was begun.
    `num_scoring` counts rollouts that are being scored and whose slots are free again: that many tasks the worker may
    hold beyond those of its slots. `failures` counts failed rollouts by error class, those of a reward function by what
    it raised and where. `phase` is what it does before it serves, for people.
    """

    worker_id: str
    state: WorkerState
    capacity: int
    served_version: int | None = None
    served_digest: str | None = None
    grant_id: str | None = None
    epoch: int = 0
    tasks_position: int = 0
    open_tasks: tuple[str, ...] = ()
    engine: str = ""
    engine_version: str = ""
    host: str = ""
    pid: int = 0
    num_running: int = 0
    num_ended: int = 0
    num_tokens: int = 0
    num_reloads: int = 0
    reload_seconds: float = 0.0
    busy_seconds: float = 0.0
    uptime_seconds: float = 0.0
    error: str | None = None
    first_versions: dict[str, int] = field(default_factory=dict)
    num_scoring: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    phase: str = ""


class RunRole(StrEnum):
    """The roles of which one process works at a time."""

    DISPATCHER = "dispatcher"
    TRAINER = "trainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStatus:
    """One heartbeat of dispatcher or trainer, for people: nothing is decided by it.

    `waits_on` and `waiting_for` say who has to act, and what is waited for with its remedy, while no step comes.
    `phase` is what it does before it can work.
    """

    role: RunRole
    role_id: str
    epoch: int = 0
    version: int = -1
    waits_on: str = ""
    waiting_for: str = ""
    host: str = ""
    pid: int = 0
    phase: str = ""
