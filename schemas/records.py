"""The closed set of records: those that travel on topics, and `SamplePayload`, which is an object of the store."""

from __future__ import annotations

from typing import get_args

from schemas.control import DatasetEnd, DispatcherEpoch, Grant, Revoke, RunClosed, Stopped, TrainerEpoch
from schemas.dead_letters import DeadLetter
from schemas.ledger import LedgerRecord
from schemas.payloads import SamplePayload
from schemas.rewards import Reward
from schemas.runs import RunManifest
from schemas.samples import Sample
from schemas.tasks import Cancel, Fence, RolloutTask, Stop, TaskBatch
from schemas.turns import Turn
from schemas.weights import WeightsPruned, WeightVersion
from schemas.workers import RoleStatus, WorkerStatus

Record = (
    RolloutTask
    | TaskBatch
    | Cancel
    | Stop
    | Fence
    | Sample
    | SamplePayload
    | Turn
    | Reward
    | WeightVersion
    | WeightsPruned
    | LedgerRecord
    | WorkerStatus
    | RoleStatus
    | DispatcherEpoch
    | TrainerEpoch
    | Grant
    | Revoke
    | DatasetEnd
    | Stopped
    | RunClosed
    | RunManifest
    | DeadLetter
)

record_types: tuple[type[Record], ...] = get_args(Record)
"""Every class of `Record`; each has a file `avsc/<class name>.avsc`."""
