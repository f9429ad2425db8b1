"""Which records may stand on which topic of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas import (
    Cancel,
    DatasetEnd,
    DeadLetter,
    DispatcherEpoch,
    Fence,
    Grant,
    LedgerRecord,
    Revoke,
    Reward,
    RoleStatus,
    RolloutTask,
    RunClosed,
    RunManifest,
    Sample,
    Stop,
    Stopped,
    TaskBatch,
    TrainerEpoch,
    Turn,
    WeightsPruned,
    WeightVersion,
    WorkerStatus,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemas.records import Record

records_by_topic: Mapping[str, tuple[type[Record], ...]] = {
    "tasks": (RolloutTask, TaskBatch, Cancel, Stop, Fence),
    "samples": (Sample,),
    "rewards": (Reward,),
    "evaluations": (Sample,),
    "steps": (LedgerRecord,),
    "weights": (WeightVersion, WeightsPruned),
    "control": (DispatcherEpoch, TrainerEpoch, Grant, Revoke, DatasetEnd, Stopped, RunClosed),
    "workers": (WorkerStatus, RoleStatus),
    "dead-letters": (DeadLetter,),
    "turns": (Turn,),
    "runs": (RunManifest,),
}
"""The records that may stand on each topic, by the last part of its name."""
