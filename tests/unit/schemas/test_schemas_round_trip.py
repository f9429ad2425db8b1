"""Whatever a record holds, it comes back from its bytes unchanged."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass, replace
from enum import StrEnum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas import (
    Amend,
    Close,
    FinishReason,
    Fork,
    Genesis,
    Kind,
    LedgerKind,
    LedgerRecord,
    Prompt,
    Rebase,
    Record,
    Reward,
    RolloutTask,
    Sample,
    Segment,
    Status,
    Step,
    TaskBatch,
    Turn,
    TurnSpan,
    WeightsPruned,
    WeightVersion,
    array_types,
    float32_array,
    int32_array,
    record_types,
    type_codes,
    uint8_array,
)
from schemas.codec import SchemaError, _written, _written_quickly, decode, decode_as, default_codec, encode
from schemas.sample_checks import most_attempts
from schemas.validation import weights_identities

if TYPE_CHECKING:
    from collections.abc import Callable

bodies = {
    LedgerKind.GENESIS: Genesis,
    LedgerKind.STEP: Step,
    LedgerKind.AMEND: Amend,
    LedgerKind.REBASE: Rebase,
    LedgerKind.CLOSE: Close,
}
scalars: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=20),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=40),
    NoneType: st.none(),
}


def array_of(code: str) -> st.SearchStrategy[Any]:
    dtype = np.dtype(code)
    return st.binary(max_size=8).map(lambda data: np.frombuffer(data * dtype.itemsize, dtype))


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    if hint in array_types:
        return array_of(type_codes[array_types[hint]])
    if hint in scalars:
        return scalars[hint]
    arguments = get_args(hint)
    if get_origin(hint) is UnionType:
        return st.one_of(*map(values_of, arguments))
    if get_origin(hint) is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if get_origin(hint) is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    return st.sampled_from(hint) if issubclass(hint, StrEnum) else records_of(hint)


def records_of(record_type: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(record_type)
    parts = {field.name: values_of(hints[field.name]) for field in fields(record_type)}
    return st.builds(record_type, **parts)


def with_numbers_that_count(sample: Sample) -> Sample:
    """Attempts, versions and tokens from 0 on."""
    return replace(
        sample,
        attempt=sample.attempt % most_attempts,
        wasted_tokens=abs(sample.wasted_tokens) // 2,
        segments=counted(sample.segments),
        forks=tuple(replace(fork, segments=counted(fork.segments)) for fork in sample.forks),
    )


def counted(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    return tuple(replace(each, version=abs(each.version) // 2) for each in segments)


def complete_arrays(token_ids: Any) -> dict[str, Any]:
    num_tokens = len(token_ids)
    cut = num_tokens // 2
    spans = [(start, end) for start, end in ((0, cut), (cut, num_tokens)) if start < end]
    return {
        "behaviour_logprobs": float32_array(np.linspace(-5, 0, num_tokens)),
        "loss_mask": uint8_array(np.ones(num_tokens)),
        "segments": tuple(
            Segment(version=3, weights_digest="ab", start=start, end=end) for start, end in spans
        ),
    }


def a_valid_fork(index: int, fork: Fork) -> Fork:
    """Any earlier sequence may be the parent; sharing nothing is always possible."""
    return replace(fork, parent=fork.parent % (index + 1), shared=0, **complete_arrays(fork.token_ids))


def a_valid_sample(sample: Sample) -> Sample:
    sample = with_numbers_that_count(sample)
    forks = tuple(a_valid_fork(index, fork) for index, fork in enumerate(sample.forks))
    turns = [
        TurnSpan(number=0, sequence=sequence, start=0, end=len(token_ids), finish_reason=FinishReason.STOP)
        for sequence, token_ids in enumerate((sample.token_ids, *(fork.token_ids for fork in forks)))
        if len(token_ids)
    ]
    num_turns = min(len(turns), len(sample.turn_rewards))
    return replace(
        sample,
        **complete_arrays(sample.token_ids),
        status=Status.FINISHED,
        reward=1.0,
        forks=forks,
        turns=tuple(replace(turn, number=number) for number, turn in enumerate(turns)),
        turn_rewards=(0.5,) * len(turns) if num_turns else (),
        payload=None,
    )


def a_valid_turn(turn: Turn) -> Turn:
    token_ids = int32_array([*(turn.token_ids & 0x7FFFFFFF), 1])
    arrays = complete_arrays(token_ids)
    arrays.pop("loss_mask")
    counted = ("group_id", "replica", "number", "shared")
    return replace(
        turn,
        **arrays,
        **{name: abs(getattr(turn, name)) // 2 for name in counted},
        token_ids=token_ids,
        context=int32_array(turn.context & 0x7FFFFFFF),
        attempt=turn.attempt % most_attempts,
        parent=-1,
        finish_reason=FinishReason.STOP,
    )


def a_valid_task(task: RolloutTask) -> RolloutTask:
    prompt = Prompt(prompt_id=task.prompt.prompt_id, text=task.reward)
    counted = ("group_id", "replica", "sample_partition", "min_version", "num_replicas")
    numbers = {name: abs(getattr(task, name)) // 2 for name in counted}
    return replace(
        task,
        **numbers | {"num_replicas": 1 + numbers["num_replicas"]},
        attempt=task.attempt % most_attempts,
        timeout_seconds=abs(task.timeout_seconds) or 1.0,
        prompt=prompt,
    )


def a_valid_reward(reward: Reward) -> Reward:
    return replace(
        reward,
        sample_id=reward.sample_id[:200] or "g0.r0.a0",
        reward=0.5,
        components=dict.fromkeys(reward.components, 1.0),
        turn_rewards=(0.25,) * len(reward.turn_rewards),
    )


def ledger_records() -> st.SearchStrategy[LedgerRecord]:
    def of_kind(kind: LedgerKind) -> st.SearchStrategy[LedgerRecord]:
        body: st.SearchStrategy[Any] = records_of(bodies[kind]) if kind in bodies else st.none()
        if kind is LedgerKind.GENESIS:
            body = st.builds(
                lambda genesis, identity: replace(genesis, weights_identity=identity),
                body,
                st.sampled_from(weights_identities),
            )
        return st.builds(
            lambda record, body: replace(record, kind=kind, body=body, part=0, num_parts=2),
            records_of(LedgerRecord),
            body,
        )

    return st.sampled_from(LedgerKind).flatmap(of_kind)


def valid_records(record_type: type[Record]) -> st.SearchStrategy[Any]:
    special: dict[type[Record], st.SearchStrategy[Any]] = {
        Sample: records_of(Sample).map(a_valid_sample),
        RolloutTask: records_of(RolloutTask).map(a_valid_task),
        TaskBatch: st.lists(records_of(RolloutTask).map(a_valid_task), min_size=1, max_size=3).map(
            lambda tasks: TaskBatch(tasks=tuple(tasks))
        ),
        Turn: records_of(Turn).map(a_valid_turn),
        Reward: records_of(Reward).map(a_valid_reward),
        WeightVersion: records_of(WeightVersion).map(lambda notice: replace(notice, name="v1.safetensors")),
        WeightsPruned: st.sets(st.integers(1, 1 << 40), min_size=1, max_size=5).map(
            lambda versions: WeightsPruned(versions=tuple(sorted(versions)))
        ),
        LedgerRecord: ledger_records(),
    }
    return special[record_type] if record_type in special else records_of(record_type)


@pytest.mark.parametrize("record_type", record_types)
@given(data=st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_every_record_survives_a_round_trip(record_type: type[Record], data: st.DataObject) -> None:
    record = data.draw(valid_records(record_type))
    read = decode(encode(record))
    assert type(read) is record_type
    assert read == record


def with_some_defaults(record: Any, data: st.DataObject) -> Any:
    """What stands at its default is what an older release can do without."""
    defaults = {field.name: field.default for field in fields(record) if field.default is not MISSING}
    names = data.draw(st.sets(st.sampled_from(sorted(defaults)))) if defaults else set()
    return replace(record, **{name: defaults[name] for name in names})


def the_bytes(write: Callable[[], bytes | None]) -> bytes | None:
    """None for what is refused."""
    try:
        return write()
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


@pytest.mark.parametrize("record_type", record_types)
@given(data=st.data())
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_both_ways_of_writing_choose_one_release_and_write_the_same_bytes(
    record_type: type[Record], data: st.DataObject
) -> None:
    record, kind = (
        with_some_defaults(data.draw(valid_records(record_type)), data),
        default_codec()._kinds[record_type],
    )
    quickly = _written_quickly(kind, record)
    assert quickly == (_written(kind, record) if kind.quick and record_type is not LedgerRecord else None)


@pytest.mark.parametrize(
    "value", [None, 0, [], [0.5], np.array([]), np.array([0.0]), iter([0.5]), (), (0.5,)]
)
@pytest.mark.parametrize(
    "name", ["turn_rewards", "forks", "turns", "segments", "metadata", "reward_components"]
)
def test_a_field_that_is_held_otherwise_than_declared_is_left_to_the_way_that_decides(
    name: str, value: object
) -> None:
    kind = default_codec()._kinds[Sample]
    sample = replace(a_finished_sample(), **{name: value})  # type: ignore[arg-type]  # as a caller without types may
    quickly = _written_quickly(kind, sample)
    assert quickly is None or quickly == the_bytes(lambda: _written(kind, sample))


@given(
    sample=records_of(Sample)
    .filter(lambda sample: sample.status is not Status.FINISHED)
    .map(with_numbers_that_count)
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_an_unfinished_sample_may_hold_anything_that_counts(sample: Sample) -> None:
    assert decode_as(Sample, encode(sample)) == sample


@pytest.mark.parametrize("record_type", record_types)
def test_enums_and_nested_records_come_back_as_their_own_classes(record_type: type[Record]) -> None:
    @given(record=valid_records(record_type))
    @settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow], database=None)
    def check(record: Record) -> None:
        assert_same_classes(decode(encode(record)), record)

    check()


def assert_same_classes(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if is_dataclass(left):
        for field in fields(left):
            assert_same_classes(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(left, tuple):
        for one, other in zip(left, right, strict=True):
            assert_same_classes(one, other)


def test_decode_as_refuses_a_record_of_another_class() -> None:
    notice = WeightVersion(version=1, sha256="ab", name="v1.safetensors", num_bytes=3)
    assert decode_as(WeightVersion, encode(notice)) == notice
    with pytest.raises(SchemaError, match="expected a Sample, found a WeightVersion"):
        decode_as(Sample, encode(notice))


def test_arrays_of_a_decoded_sample_share_the_memory_of_what_was_read() -> None:
    # A read-only array that owns no data is a view; a copy would be writable.
    sample = decode_as(Sample, encode(a_finished_sample()))
    for array in (sample.token_ids, sample.behaviour_logprobs, sample.loss_mask, sample.prompt_token_ids):
        assert not array.flags.owndata
        assert not array.flags.writeable


def a_finished_sample() -> Sample:
    return Sample(
        sample_id="g1.r0.a0",
        task_id="1-1",
        kind=Kind.TRAINING,
        status=Status.FINISHED,
        epoch=1,
        grant_id="g",
        worker_id="w",
        group_id=1,
        replica=0,
        attempt=0,
        prompt_id="p",
        prompt_token_ids=int32_array([1]),
        token_ids=int32_array([1, 2]),
        behaviour_logprobs=float32_array([-1, -2]),
        loss_mask=uint8_array([1, 1]),
        segments=(Segment(version=0, weights_digest="ab", start=0, end=2),),
    )
