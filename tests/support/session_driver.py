"""A rollout worker's session, driven by hand."""

from __future__ import annotations

from typing import Any

from producers.rollout.actions import Action, End, Load, Start
from producers.rollout.session import ReloadMode, WorkerSession
from schemas import DispatcherEpoch, Grant, Kind, Record, RolloutTask, Status, WeightVersion, WorkerState
from support.builders import a_task

worker_id = "worker-1"


def a_notice(version: int) -> WeightVersion:
    sha256 = f"{version:016x}" + "0" * 48
    return WeightVersion(version=version, sha256=sha256, name=f"v{version}", num_bytes=1)


def a_grant(**changes: Any) -> Grant:
    values: dict[str, Any] = {
        "grant_id": "1.1",
        "epoch": 1,
        "worker_id": worker_id,
        "partition": 2,
        "start_offset": 10,
    }
    return Grant(**(values | changes))


def an_evaluation(number: int, version: int) -> RolloutTask:
    return a_task(
        number,
        task_id=f"1.e{number}",
        kind=Kind.EVALUATION,
        pinned_version=version,
        min_version=version,
        evaluation="greedy",
    )


class SessionDriver:
    """A session with a clock, and the offsets of its tasks partition."""

    def __init__(
        self,
        *,
        capacity: int = 4,
        served: int | None = 0,
        granted: bool = True,
        reload: ReloadMode = "keep",
        max_resumes: int = 8,
        max_scoring: int = 2,
    ) -> None:
        self.now = 0.0
        self.offset = 10
        self.session = WorkerSession(
            worker_id,
            capacity=capacity,
            load_attempts=3,
            reward_function="m:f",
            clock=lambda: self.now,
            reload=reload,
            max_resumes=max_resumes,
            num_task_partitions=4,
            max_scoring=max_scoring,
        )
        self.session.on_control(DispatcherEpoch(epoch=1, dispatcher_id="d"))
        if granted:
            self.session.on_control(a_grant())
        self.session.engine_ready()
        if served is not None:
            assert self.session.on_weights(a_notice(served)) == [Load(a_notice(served))]
            self.session.loaded(a_notice(served))

    def says(self) -> WorkerState:
        """What heartbeats say now."""
        return self.session.state

    def task(self, record: Record) -> list[Action]:
        self.offset += 1
        return self.session.on_task(record, self.offset - 1)

    def generate(self, task_id: str) -> list[Action]:
        return self.session.replica_generated(task_id)

    def score(self, task_id: str) -> list[Action]:
        return self.session.replica_ended(task_id)

    def end(self, task_id: str) -> list[Action]:
        """One replica is generated, and scored at once."""
        return [*self.generate(task_id), *self.score(task_id)]


def endings(actions: list[Action]) -> list[tuple[str, Status, str | None]]:
    """Of tasks that never ran: id, status and reason (or class of the error)."""
    return [
        (action.task.task_id, action.ending.status, action.ending.cancel_reason or action.ending.error_class)
        for action in actions
        if isinstance(action, End)
    ]


def started(actions: list[Action]) -> list[str]:
    return [action.task.task_id for action in actions if isinstance(action, Start)]
