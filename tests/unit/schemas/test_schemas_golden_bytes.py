"""The bytes of each record are those written down in tests/data/golden.

After a deliberate change of a schema, look at the difference and write them anew by hand:

    ROLLOG_WRITE_GOLDEN=1 pytest tests/unit/schemas/test_schemas_golden_bytes.py
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from schemas import (
    Amend,
    Cancel,
    CancelReason,
    Close,
    ClosedGroup,
    DatasetEnd,
    DeadLetter,
    DispatcherEpoch,
    Disposition,
    Fence,
    FinishReason,
    ForkPayload,
    Genesis,
    Grant,
    IssueReason,
    Kind,
    LedgerKind,
    LedgerRecord,
    MicroBatch,
    Prompt,
    Rebase,
    Record,
    Revoke,
    Reward,
    RewardReference,
    RoleStatus,
    RolloutTask,
    RunClosed,
    RunManifest,
    RunRole,
    Sample,
    SamplePayload,
    SamplingParameters,
    Segment,
    Status,
    Step,
    StepTimings,
    Stop,
    Stopped,
    TaskBatch,
    Timings,
    TrainerEpoch,
    Turn,
    TurnBase,
    Verdict,
    WeightsBase,
    WeightsPruned,
    WeightVersion,
    WorkerState,
    WorkerStatus,
    float32_array,
    int32_array,
    record_types,
    uint8_array,
)
from schemas.codec import decode, encode

folder = Path(__file__).parents[2] / "data" / "golden"

old_weights = "ab" * 32
new_weights = "cd" * 32


def a_ledger_record(kind: LedgerKind, sequence: int) -> LedgerRecord:
    bodies: dict[LedgerKind, Genesis | Step | Amend | Rebase | Close] = {
        LedgerKind.GENESIS: Genesis(
            manifest_json='{"run": "one"}',
            weights_sha256=old_weights,
            model_config_json='{"hidden_size": 128}',
            versions={"torch": "2.13.0"},
            machine="x86_64",
            world_size=2,
            zero_stage=1,
            dtype="float32",
        ),
        LedgerKind.STEP: a_step(),
        LedgerKind.AMEND: Amend(revision=1, changes_json='{"alpha": 2}'),
        LedgerKind.REBASE: Rebase(
            version_not_reproduced=3,
            weights_sha256=new_weights,
            expected_sha256=old_weights,
            max_difference=1e-6,
            reason="another processor",
        ),
        LedgerKind.CLOSE: Close(end_offsets=(120, 131), reason="all steps done"),
    }
    step = kind is LedgerKind.STEP
    return LedgerRecord(
        kind=kind,
        sequence=sequence,
        version=3,
        alpha=1.5,
        previous_hash=bytes(range(32)),
        low_water_marks=(40, 41),
        verdicts=(a_verdict(),) if step else (),
        closed_groups=(ClosedGroup(group_id=7, outcome=Disposition.TRAINED, protected_waits=1),)
        if step
        else (),
        body=bodies.get(kind),
    )


def a_step() -> Step:
    return Step(
        weights_sha256_before=old_weights,
        weights_sha256=new_weights,
        alpha=1.5,
        revision=0,
        seed=99,
        plan=(MicroBatch(minibatch=0, rank=1, positions=(0,)),),
        losses=(0.25,),
        gradient_norms=(1.5,),
        learning_rates=(0.0003,),
        reward_mean=0.5,
        num_groups=1,
        num_samples=1,
        num_tokens=3,
        lags={"1": 1},
        statistics={"ratio_mean": 1.0},
        timings=StepTimings(wait_seconds=0.5, train_seconds=0.25),
        checkpoint="step-000002",
    )


def a_verdict() -> Verdict:
    return Verdict(
        partition=1,
        offset=42,
        sample_id="g7.r1.a0",
        digest=bytes(range(16)),
        group_id=7,
        replica=1,
        disposition=Disposition.TRAINED,
        lag=1,
    )


def a_turn() -> Turn:
    return Turn(
        task_id="3-43",
        worker_id="w-5f3a",
        group_id=7,
        replica=1,
        attempt=2,
        number=2,
        base=TurnBase(task_id="3-41", numbers=(0, 1)),
        parent=1,
        shared=5,
        context=int32_array([9, 8]),
        token_ids=int32_array([4, 5]),
        behaviour_logprobs=float32_array([-0.5, -0.25]),
        segments=(Segment(version=3, weights_digest="ab" * 8, start=0, end=2),),
        finish_reason=FinishReason.STOP,
    )


def a_sample() -> Sample:
    return Sample(
        sample_id="g7.r1.a0",
        task_id="3-41",
        kind=Kind.TRAINING,
        status=Status.FINISHED,
        epoch=3,
        grant_id="grant-1",
        worker_id="w-5f3a",
        group_id=7,
        replica=1,
        attempt=0,
        prompt_id="countdown-12",
        seed=123456789,
        prompt_token_ids=int32_array([1, 2, 300]),
        token_ids=int32_array([4, 70000, 2]),
        behaviour_logprobs=float32_array([-0.5, -1.25, 0]),
        loss_mask=uint8_array([1, 1, 0]),
        segments=(
            Segment(version=2, weights_digest=old_weights[:16], start=0, end=2),
            Segment(version=3, weights_digest=new_weights[:16], start=2, end=3),
        ),
        response_text="+ 10 ✓",
        reward=1.0,
        reward_components={"correct": 1.0},
        turn_rewards=(1.0,),
        finish_reason=FinishReason.STOP,
        timings=Timings(queued_seconds=0.125, generation_seconds=2.0, reward_seconds=0.5),
        wasted_tokens=5,
        metadata={"origin": "test"},
    )


def a_task() -> RolloutTask:
    return RolloutTask(
        task_id="3-41",
        kind=Kind.EVALUATION,
        epoch=3,
        grant_id="grant-1",
        group_id=7,
        replica=1,
        attempt=2,
        seed=123456789,
        prompt=Prompt(prompt_id="countdown-12", text="7 3 8 : 12 =", reward_inputs_json='{"target": 12}'),
        sampling=SamplingParameters(temperature=0.0, max_tokens=64, stop_token_ids=(2,)),
        sample_partition=1,
        reward="countdown",
        min_version=2,
        issued_version=3,
        pinned_version=3,
        evaluation="greedy",
        issue_reason=IssueReason.STALE,
        protected=True,
        timeout_seconds=30.0,
        ledger_position=17,
        samples_positions=(120, 131),
        metadata={"origin": "test"},
    )


def a_worker_status() -> WorkerStatus:
    return WorkerStatus(
        worker_id="w-5f3a",
        state=WorkerState.SERVING,
        capacity=64,
        served_version=3,
        served_digest=new_weights[:16],
        grant_id="grant-1",
        epoch=3,
        tasks_position=77,
        open_tasks=("3-41", "3-42"),
        engine="vllm",
        engine_version="0.32.0",
        host="one",
        pid=4711,
        num_running=2,
        num_ended=75,
        num_tokens=4800,
        num_reloads=3,
        reload_seconds=0.25,
        busy_seconds=10.0,
        uptime_seconds=12.5,
        first_versions={"3-41": 2},
        num_scoring=3,
        failures={"EngineError": 2},
    )


def late_record() -> LedgerRecord:
    """A record of a run whose samples get their rewards late."""
    reference = RewardReference(offset=17, digest=bytes(range(16)))
    unrewarded = replace(a_verdict(), offset=43, disposition=Disposition.UNREWARDED, reason="no_reward")
    return replace(
        a_ledger_record(LedgerKind.VERDICTS, 9),
        verdicts=(replace(a_verdict(), late_reward=reference), unrewarded),
        reward_position=21,
        reward_mark=17,
    )


def records_of_work() -> list[Record]:
    """What passes between dispatcher, worker and whoever scores."""
    return [
        a_task(),
        TaskBatch(tasks=(a_task(), replace(a_task(), task_id="3-42", replica=1))),
        Cancel(task_id="3-41", epoch=3, grant_id="grant-1", reason=CancelReason.STALE),
        Stop(epoch=3, grant_id="grant-1"),
        Fence(epoch=3),
        a_sample(),
        a_turn(),
        Reward(
            sample_id="g7.r1.a0",
            reward=0.75,
            components={"passed": 3.0},
            turn_rewards=(0.25, 0.5),
            scorer="tests of a pull request",
        ),
        SamplePayload(
            prompt_token_ids=int32_array([5, 6]),
            token_ids=int32_array([7, 8]),
            behaviour_logprobs=float32_array([-0.5, -1.5]),
            loss_mask=uint8_array([1, 1]),
            response_text="four",
            forks=(
                ForkPayload(
                    context=int32_array([9]),
                    token_ids=int32_array([10]),
                    behaviour_logprobs=float32_array([-0.25]),
                    loss_mask=uint8_array([1]),
                ),
            ),
        ),
    ]


def records_of_roles() -> list[Record]:
    """What roles say of themselves and to each other."""
    return [
        a_worker_status(),
        RoleStatus(
            role=RunRole.TRAINER,
            role_id="trainer-5f3a",
            epoch=2,
            version=3,
            waits_on="worker",
            waiting_for="group 7 lacks 1 of 4 samples; see the dispatcher",
            host="one",
            pid=4712,
        ),
        DispatcherEpoch(epoch=3, dispatcher_id="one:4700"),
        TrainerEpoch(epoch=2, trainer_id="trainer-5f3a"),
        Grant(grant_id="grant-1", epoch=3, worker_id="w-5f3a", partition=2, start_offset=60),
        Revoke(grant_id="grant-1", epoch=3, worker_id="w-5f3a", reason="silent"),
        DatasetEnd(epoch=3, last_group_id=-1),
        Stopped(epoch=3),
        RunClosed(epoch=3),
    ]


def records_of_the_run() -> list[Record]:
    """What is said of the run as a whole."""
    return [
        WeightVersion(version=3, sha256=new_weights, name="v000003-cdcd.safetensors", num_bytes=1_600_000),
        WeightsPruned(versions=(1, 2, 4)),
        RunManifest(
            run="one",
            prefix="rollog",
            seed=17,
            config_json="{}",
            config_sha256=old_weights,
            weights_uri="file:///tmp/weights",
            rollog_version="0.1.0",
            created_unix_seconds=1.5e9,
            partitions={"samples": 2},
        ),
        DeadLetter(
            topic="rollog.one.samples",
            partition=1,
            offset=43,
            reason="the bytes end in the middle of a field",
            error_class="SchemaError",
            owner="trainer",
            value=b"\xc3\x01",
            headers={"type": b"Sample"},
        ),
    ]


def examples() -> dict[str, Record]:
    ledger = {f"LedgerRecord-{kind}": a_ledger_record(kind, number) for number, kind in enumerate(LedgerKind)}
    others = [*records_of_work(), *records_of_roles(), *records_of_the_run()]
    variants: dict[str, Record] = {
        "LedgerRecord-late": late_record(),
        "LedgerRecord-genesis-content": genesis_of_a_run_with_manifests(),
        "WeightVersion-manifest": a_manifest_notice(),
    }
    return {type(record).__name__: record for record in others} | ledger | variants


def genesis_of_a_run_with_manifests() -> LedgerRecord:
    record = a_ledger_record(LedgerKind.GENESIS, 0)
    assert isinstance(record.body, Genesis)
    return replace(record, body=replace(record.body, weights_identity="content"))


def a_manifest_notice() -> WeightVersion:
    """Of a version that is stored as changes, so that every field is in use."""
    return WeightVersion(
        version=3,
        sha256=new_weights,
        name="v000003-0123456789abcdef.manifest",
        num_bytes=1_600_000,
        format="manifest-1",
        manifest_sha256="ef" * 32,
        base=WeightsBase(version=2, sha256=old_weights),
        stored_bytes=48_000,
    )


def readable(data: bytes) -> str:
    """Sixteen bytes a line: position, hexadecimal digits, printable characters."""
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:06x}  {row.hex(' '):47}  {characters}\n")
    return "".join(lines)


if os.environ.get("ROLLOG_WRITE_GOLDEN"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, record in examples().items():
        (folder / f"{name}.bin").write_bytes(encode(record))
        (folder / f"{name}.hex").write_text(readable(encode(record)), encoding="ascii")


@pytest.mark.parametrize("name", examples())
def test_a_record_is_written_as_its_golden_bytes(name: str) -> None:
    data = encode(examples()[name])
    assert readable(data) == (folder / f"{name}.hex").read_text(encoding="ascii")
    assert data == (folder / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", examples())
def test_golden_bytes_are_read_as_their_record(name: str) -> None:
    assert decode((folder / f"{name}.bin").read_bytes()) == examples()[name]


def test_every_record_has_golden_bytes_and_no_others_are_left() -> None:
    assert {type(record) for record in examples().values()} == set(record_types)
    assert {path.stem for path in folder.iterdir()} == set(examples())
