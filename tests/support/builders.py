"""Records and headers with defaults, for tests that care about one field."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollog.rules.headers import SampleHeader
from rollog.rules.ledger_state import LedgerState, record_hash
from rollog.settings.groups import FreshnessConfig, GroupConfig
from schemas import (
    Amend,
    Close,
    Genesis,
    Kind,
    LedgerKind,
    LedgerRecord,
    Prompt,
    RolloutTask,
    Sample,
    SamplingParameters,
    Segment,
    Status,
    Step,
    Verdict,
    WorkerState,
    WorkerStatus,
    float32_array,
    int32_array,
    sample_id,
    uint8_array,
)
from schemas.codec import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas import ClosedGroup
    from trainer.buffer.ready_groups import ReadyGroup
    from trainer.buffer.sample_buffer import SampleBuffer

num_partitions = 4


def weights_sha256(version: int) -> str:
    return f"{version:016x}" + "0" * 48


def digest_of(version: int) -> str:
    return weights_sha256(version)[:16]


def groups_config(**changes: Any) -> GroupConfig:
    return GroupConfig(**({"groups_per_batch": 2, "group_size": 2} | changes))


def freshness_config(**changes: Any) -> FreshnessConfig:
    return FreshnessConfig(**({"alpha": 1.0} | changes))


def a_segment(version: int = 0, start: int = 0, end: int = 3) -> Segment:
    return Segment(version=version, weights_digest=digest_of(version), start=start, end=end)


def a_header(
    group: int = 0, replica: int = 0, *, offset: int, version: int = 0, **changes: Any
) -> SampleHeader:
    """A finished sample's header; `offset` must be unique on the group's partition."""
    values: dict[str, Any] = {
        "partition": group % num_partitions,
        "offset": offset,
        "sample_id": sample_id(group, replica, 0),
        "digest": bytes(16),
        "task_id": f"1.{group * 100 + replica}",
        "status": Status.FINISHED,
        "group_id": group,
        "replica": replica,
        "attempt": 0,
        "segments": (a_segment(version),),
        "first_version": version,
        "reward": float(replica % 2),
        "num_tokens": 3,
        "num_prompt_tokens": 4,
    }
    return SampleHeader(**(values | changes))


def a_sample(group: int = 0, replica: int = 0, *, version: int = 0, **changes: Any) -> Sample:
    values: dict[str, Any] = {
        "sample_id": sample_id(group, replica, 0),
        "task_id": f"1.{group * 100 + replica}",
        "kind": Kind.TRAINING,
        "status": Status.FINISHED,
        "epoch": 1,
        "grant_id": "1.1",
        "worker_id": "worker-1",
        "group_id": group,
        "replica": replica,
        "attempt": 0,
        "prompt_id": str(group),
        "prompt_token_ids": int32_array([1, 2, 3, 4]),
        "token_ids": int32_array([5, 6, 7]),
        "behaviour_logprobs": float32_array([-0.5, -0.25, -1.0]),
        "loss_mask": uint8_array([1, 1, 1]),
        "segments": (a_segment(version),),
        "reward": float(replica % 2),
    }
    return Sample(**(values | changes))


def a_task(group: int = 0, replica: int = 0, **changes: Any) -> RolloutTask:
    values: dict[str, Any] = {
        "task_id": f"1.{group * 100 + replica}",
        "kind": Kind.TRAINING,
        "epoch": 1,
        "grant_id": "1.1",
        "group_id": group,
        "replica": replica,
        "attempt": 0,
        "seed": 7,
        "prompt": Prompt(prompt_id=str(group), text="1 2 3 : 6 ="),
        "sampling": SamplingParameters(temperature=1.0, max_tokens=16),
        "sample_partition": group % num_partitions,
        "reward": "",
    }
    return RolloutTask(**(values | changes))


def a_heartbeat(worker_id: str = "worker-1", **changes: Any) -> WorkerStatus:
    values: dict[str, Any] = {
        "worker_id": worker_id,
        "state": WorkerState.SERVING,
        "capacity": 4,
        "served_version": 0,
    }
    return WorkerStatus(**(values | changes))


def a_genesis(alpha: float = 1.0, marks: Sequence[int] = (0,) * num_partitions) -> LedgerRecord:
    return LedgerRecord(
        kind=LedgerKind.GENESIS,
        sequence=0,
        version=0,
        alpha=alpha,
        previous_hash=bytes(32),
        low_water_marks=tuple(marks),
        body=Genesis(
            manifest_json="{}",
            weights_sha256=weights_sha256(0),
            model_config_json="{}",
            versions={},
            machine="test",
            world_size=1,
            zero_stage=1,
            dtype="float32",
        ),
    )


class LedgerBuilder:
    """A chain of ledger records and its fold."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.state = LedgerState()
        self.records: list[LedgerRecord] = []
        self.add(a_genesis(alpha))

    def add(self, record: LedgerRecord) -> LedgerRecord:
        self.records.append(record)
        self.state.apply(record, record_hash(encode(record)))
        return record

    def amend(self, changes_json: str, revision: int | None = None) -> LedgerRecord:
        """Settings that change, by dotted key; the next revision without another."""
        number = self.state.revision + 1 if revision is None else revision
        return self.bare(LedgerKind.AMEND, Amend(revision=number, changes_json=changes_json))

    def bare(self, kind: LedgerKind, body: Amend | Close) -> LedgerRecord:
        """A record without verdicts that makes no version."""
        return self.add(
            LedgerRecord(
                kind=kind,
                sequence=self.state.next_sequence,
                version=self.state.version,
                alpha=self.state.alpha,
                previous_hash=self.state.head,
                low_water_marks=self.state.low_water_marks,
                body=body,
            )
        )

    def step(
        self,
        verdicts: Sequence[Verdict] = (),
        closed: Sequence[ClosedGroup] = (),
        *,
        marks: Sequence[int] = (0,) * num_partitions,
        alpha: float | None = None,
        **changes: Any,
    ) -> LedgerRecord:
        """A step; `changes` are those of its body, `alpha` is in force for the step after it."""
        version = self.state.version + 1
        body = Step(
            weights_sha256_before=weights_sha256(version - 1),
            weights_sha256=weights_sha256(version),
            alpha=self.state.alpha,
            revision=0,
            seed=0,
            plan=(),
            losses=(0.0,),
            gradient_norms=(0.0,),
            learning_rates=(0.0,),
            reward_mean=0.0,
            num_groups=len(closed),
            num_samples=len(verdicts),
            num_tokens=0,
        )
        body = replace(body, **changes)
        return self.add(
            LedgerRecord(
                kind=LedgerKind.STEP,
                sequence=self.state.next_sequence,
                version=version,
                alpha=self.state.alpha if alpha is None else alpha,
                previous_hash=self.state.head,
                low_water_marks=tuple(marks),
                verdicts=tuple(verdicts),
                closed_groups=tuple(closed),
                body=body,
            )
        )

    def verdicts(
        self,
        verdicts: Sequence[Verdict] = (),
        closed: Sequence[ClosedGroup] = (),
        *,
        marks: Sequence[int] = (0,) * num_partitions,
    ) -> LedgerRecord:
        return self.add(
            LedgerRecord(
                kind=LedgerKind.VERDICTS,
                sequence=self.state.next_sequence,
                version=self.state.version,
                alpha=self.state.alpha,
                previous_hash=self.state.head,
                low_water_marks=tuple(marks),
                verdicts=tuple(verdicts),
                closed_groups=tuple(closed),
            )
        )

    def close(self) -> LedgerRecord:
        marks = self.state.low_water_marks
        return self.bare(LedgerKind.CLOSE, Close(end_offsets=marks, reason="done"))

    def publish(self, buffer: SampleBuffer, batch: Sequence[ReadyGroup] = ()) -> LedgerRecord:
        """Commit what the buffer has to say: a step where there is a batch, verdicts otherwise."""
        verdicts, closed = buffer.verdicts_for(batch)
        record = self.step(verdicts, closed) if batch else self.verdicts(verdicts, closed)
        buffer.committed(record)
        return record
