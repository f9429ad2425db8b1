"""The records of rollog: one frozen dataclass and one Avro schema each.

`schemas.codec` turns them into bytes and back, `schemas.headers` tells their Kafka headers, and
`python -m schemas.compatibility` compares the schemas with the released ones. Nothing here knows Kafka.
"""

from __future__ import annotations

from schemas.arrays import (
    ArrayEquality,
    Float32Array,
    Int32Array,
    UInt8Array,
    array_types,
    float32_array,
    int32_array,
    type_codes,
    uint8_array,
)
from schemas.control import DatasetEnd, DispatcherEpoch, Grant, Revoke, RunClosed, Stopped, TrainerEpoch
from schemas.dead_letters import DeadLetter
from schemas.errors import SchemaError
from schemas.ledger import (
    Amend,
    Close,
    ClosedGroup,
    Disposition,
    Genesis,
    LedgerBody,
    LedgerKind,
    LedgerRecord,
    MicroBatch,
    Rebase,
    RewardReference,
    Step,
    StepTimings,
    Verdict,
)
from schemas.payloads import ForkPayload, SamplePayload
from schemas.records import Record, record_types
from schemas.rewards import Reward
from schemas.runs import RunManifest
from schemas.samples import (
    FinishReason,
    Fork,
    Payload,
    Row,
    Sample,
    Segment,
    Status,
    Timings,
    TurnSpan,
    num_turns,
    sample_id,
    turn_numbers,
)
from schemas.tasks import (
    Cancel,
    CancelReason,
    Fence,
    IssueReason,
    Kind,
    Prompt,
    RolloutTask,
    SamplingParameters,
    Stop,
    TaskBatch,
    most_tasks_in_record,
    tasks_in,
)
from schemas.turns import Turn, TurnBase
from schemas.weights import WeightsBase, WeightsProbe, WeightsPruned, WeightVersion
from schemas.workers import RoleStatus, RunRole, WorkerState, WorkerStatus

__all__ = [
    "Amend",
    "ArrayEquality",
    "Cancel",
    "CancelReason",
    "Close",
    "ClosedGroup",
    "DatasetEnd",
    "DeadLetter",
    "DispatcherEpoch",
    "Disposition",
    "Fence",
    "FinishReason",
    "Float32Array",
    "Fork",
    "ForkPayload",
    "Genesis",
    "Grant",
    "Int32Array",
    "IssueReason",
    "Kind",
    "LedgerBody",
    "LedgerKind",
    "LedgerRecord",
    "MicroBatch",
    "Payload",
    "Prompt",
    "Rebase",
    "Record",
    "Revoke",
    "Reward",
    "RewardReference",
    "RoleStatus",
    "RolloutTask",
    "Row",
    "RunClosed",
    "RunManifest",
    "RunRole",
    "Sample",
    "SamplePayload",
    "SamplingParameters",
    "SchemaError",
    "Segment",
    "Status",
    "Step",
    "StepTimings",
    "Stop",
    "Stopped",
    "TaskBatch",
    "Timings",
    "TrainerEpoch",
    "Turn",
    "TurnBase",
    "TurnSpan",
    "UInt8Array",
    "Verdict",
    "WeightVersion",
    "WeightsBase",
    "WeightsProbe",
    "WeightsPruned",
    "WorkerState",
    "WorkerStatus",
    "array_types",
    "float32_array",
    "int32_array",
    "most_tasks_in_record",
    "num_turns",
    "record_types",
    "sample_id",
    "tasks_in",
    "turn_numbers",
    "type_codes",
    "uint8_array",
]
