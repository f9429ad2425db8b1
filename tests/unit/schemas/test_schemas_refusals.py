"""What is not a valid record is refused with a message that names it, both ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from schemas import (
    Amend,
    Kind,
    LedgerKind,
    LedgerRecord,
    Prompt,
    RolloutTask,
    Sample,
    SamplingParameters,
    Segment,
    Status,
    Stop,
    WeightVersion,
    float32_array,
    int32_array,
    uint8_array,
)
from schemas.codec import SchemaError, decode, encode
from schemas.headers import headers_of


def a_segment(start: int = 0, end: int = 3, version: int = 2) -> Segment:
    return Segment(version=version, weights_digest="0123456789abcdef", start=start, end=end)


def a_sample(**changes: Any) -> Sample:
    values: dict[str, Any] = {
        "sample_id": "g7.r1.a0",
        "task_id": "3-41",
        "kind": Kind.TRAINING,
        "status": Status.FINISHED,
        "epoch": 3,
        "grant_id": "grant-1",
        "worker_id": "w-1",
        "group_id": 7,
        "replica": 1,
        "attempt": 0,
        "prompt_id": "p",
        "token_ids": int32_array([5, 6, 7]),
        "behaviour_logprobs": float32_array([-0.5, -1.0, -0.25]),
        "loss_mask": uint8_array([1, 1, 1]),
        "segments": (a_segment(),),
        "reward": 1.0,
    }
    return Sample(**values | changes)


def a_task(**changes: Any) -> RolloutTask:
    values: dict[str, Any] = {
        "task_id": "3-41",
        "kind": Kind.TRAINING,
        "epoch": 3,
        "grant_id": "grant-1",
        "group_id": 7,
        "replica": 1,
        "attempt": 0,
        "seed": 5,
        "prompt": Prompt(prompt_id="p", text="1 + 1 ="),
        "sampling": SamplingParameters(temperature=1.0, max_tokens=8),
        "sample_partition": 0,
        "reward": "exact",
    }
    return RolloutTask(**values | changes)


def a_ledger_record(**changes: Any) -> LedgerRecord:
    values: dict[str, Any] = {
        "kind": LedgerKind.VERDICTS,
        "sequence": 4,
        "version": 2,
        "alpha": 1.0,
        "previous_hash": b"\x01" * 32,
        "low_water_marks": (3,),
    }
    return LedgerRecord(**values | changes)


def a_notice(**changes: Any) -> WeightVersion:
    values: dict[str, Any] = {"version": 1, "sha256": "ab" * 32, "name": "v1.safetensors", "num_bytes": 9}
    return WeightVersion(**values | changes)


refused_samples: dict[str, dict[str, Any]] = {
    "behaviour_logprobs 2": {"behaviour_logprobs": float32_array([-1, -2])},
    "loss_mask 4": {"loss_mask": uint8_array([1, 1, 1, 1])},
    "segments cover 2 of 3": {"segments": (a_segment(end=2),)},
    "segments cover 4 of 3": {"segments": (a_segment(end=4),)},
    "segments cover 0 of 3": {"segments": ()},
    "turn_rewards has 2 entries, its loss mask 1 turns": {"turn_rewards": (1.0, 0.0)},
    "turn_rewards has 1 entries, its loss mask 2 turns": {
        "turn_rewards": (1.0,),
        "loss_mask": uint8_array([1, 0, 1]),
    },
    r"turn_rewards\[0\] is inf": {"turn_rewards": (float("inf"),)},
    r"\[2, 3\) .* does not begin at token 1": {"segments": (a_segment(end=1), a_segment(start=2))},
    r"\[1, 3\) .* does not begin at token 2": {"segments": (a_segment(end=2), a_segment(start=1))},
    r"\[0, 0\) .* is empty": {"segments": (a_segment(end=0), a_segment())},
    "reward is nan": {"reward": float("nan")},
    r"behaviour_logprobs\[1\] is nan": {"behaviour_logprobs": float32_array([-1, np.nan, -1])},
    r"behaviour_logprobs\[2\] is -inf": {"behaviour_logprobs": float32_array([-1, -2, -np.inf])},
}


@pytest.mark.parametrize("words", refused_samples)
def test_a_finished_sample_must_be_complete(words: str) -> None:
    with pytest.raises(SchemaError, match=rf"g7\.r1\.a0: .*{words}"):
        encode(a_sample(**refused_samples[words]))


def test_an_invalid_sample_is_refused_on_reading_too() -> None:
    # The status is one byte of the encoding: a failed sample may be incomplete, the same bytes finished may not.
    failed = encode(a_sample(status=Status.FAILED, segments=()))
    position = failed.index(b"\x083-41") + len("\x083-41") + 1
    assert failed[position] == 2
    with pytest.raises(SchemaError, match=r"Sample of .* segments cover 0 of 3"):
        decode(failed[:position] + b"\x00" + failed[position + 1 :])


def test_a_masked_token_may_have_any_logprob() -> None:
    masked = a_sample(loss_mask=uint8_array([1, 0, 1]), behaviour_logprobs=float32_array([-1, np.nan, -1]))
    assert decode(encode(masked)) == masked
    large = a_sample(behaviour_logprobs=float32_array([-3e38, -3e38, 0]))
    assert decode(encode(large)) == large


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("token_ids", [1, 2, 3], "token_ids must be .* int32, not a list"),
        ("token_ids", np.arange(3), "token_ids must be .* int32, not one of 1 dimensions of int64"),
        ("prompt_token_ids", int32_array([[1, 2]]), "prompt_token_ids .* 2 dimensions"),
        ("group_id", "7", "Sample cannot be written"),
        ("group_id", 2**63, "Sample cannot be written"),
        ("task_id", None, "Sample cannot be written"),
        ("response_text", "\ud800", "Sample cannot be written"),
        ("kind", "leisure", "Sample cannot be written"),
        ("finish_reason", "boredom", "Sample cannot be written"),
        ("segments", None, "Sample cannot be written"),
        ("timings", None, "Sample cannot be written"),
        ("metadata", {"a": 1}, "Sample cannot be written"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(field: str, value: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        encode(a_sample(status=Status.FAILED, **{field: value}))


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(SchemaError, match="a Segment is not a record that travels on a topic"):
        encode(a_segment())  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize(
    "prompt", [Prompt(prompt_id="p"), Prompt(prompt_id="p", text="a", messages_json="[]")]
)
def test_a_prompt_has_exactly_one_form(prompt: Prompt) -> None:
    with pytest.raises(SchemaError, match="task 3-41: prompt p needs exactly one"):
        encode(a_task(prompt=prompt))


def test_a_task_orders_at_least_one_rollout() -> None:
    with pytest.raises(SchemaError, match="num_replicas is 0"):
        encode(a_task(num_replicas=0))


@pytest.mark.parametrize("name", ["", ".", "..", "../v1", "a/b", "/etc/passwd", "a\\b", "a\0b"])
def test_the_name_of_a_weights_file_is_never_a_path(name: str) -> None:
    with pytest.raises(SchemaError, match="not a plain file name"):
        encode(a_notice(name=name))


def test_the_body_of_a_ledger_record_fits_its_kind() -> None:
    amend = Amend(revision=1, changes_json="{}")
    assert decode(encode(a_ledger_record(kind=LedgerKind.AMEND, body=amend)))
    with pytest.raises(SchemaError, match="record 4 of kind verdicts cannot have a body of type Amend"):
        encode(a_ledger_record(body=amend))
    with pytest.raises(SchemaError, match="record 4 of kind step cannot have a body of type NoneType"):
        encode(a_ledger_record(kind=LedgerKind.STEP))
    with pytest.raises(SchemaError, match="cannot have a body of type Stop"):
        encode(a_ledger_record(kind=LedgerKind.STEP, body=Stop(epoch=1, grant_id="g")))


def test_later_parts_of_a_split_ledger_record_may_go_without_a_body() -> None:
    part = a_ledger_record(kind=LedgerKind.STEP, part=1, num_parts=2)
    assert decode(encode(part)) == part
    with pytest.raises(SchemaError, match="is part 2 of 2"):
        encode(replace(part, part=2))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes are too few"),
        (b"\xc3\x01short", "7 bytes are too few"),
        (b"\x00" * 20, "begin with 00 and the id 0"),
        (b"\x80\x04\x95" + b"x" * 20, "not Avro single-object encoding"),
        (b"\xc3\x01" + b"\xff" * 8, "no schema with fingerprint ffffffffffffffff"),
    ],
)
def test_foreign_bytes_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        decode(data)


def test_truncated_and_overlong_bytes_are_refused() -> None:
    data = encode(a_sample())
    for length in range(len(data)):
        with pytest.raises(SchemaError):
            decode(data[:length])
    with pytest.raises(SchemaError, match="2 bytes are left after the record"):
        decode(data + b"\x00\x00")


def test_an_array_that_ends_in_the_middle_of_an_item_is_refused() -> None:
    data = encode(a_sample())
    tokens = int32_array([5, 6, 7]).tobytes()
    assert data.count(bytes([2 * len(tokens)]) + tokens) == 1
    shorter = data.replace(bytes([2 * len(tokens)]) + tokens, bytes([2 * len(tokens) - 2]) + tokens[:-1])
    with pytest.raises(SchemaError, match="token_ids has 11 bytes, not a multiple of 4"):
        decode(shorter)


def test_an_unknown_enum_symbol_is_refused() -> None:
    data = encode(Stop(epoch=1, grant_id="g"))
    assert decode(data) == Stop(epoch=1, grant_id="g")
    cancelled = encode(a_task())
    position = cancelled.index(b"\x083-41") + len("\x083-41")
    with pytest.raises(SchemaError, match=r"RolloutTask of .* cannot be read"):
        decode(cancelled[:position] + b"\x20" + cancelled[position + 1 :])


def test_headers_tell_what_a_record_is_about_without_its_value() -> None:
    assert headers_of(a_sample()) == [
        ("type", b"Sample"),
        ("task_id", b"3-41"),
        ("kind", b"training"),
        ("group_id", b"7"),
        ("replica", b"1"),
        ("attempt", b"0"),
        ("sample_id", b"g7.r1.a0"),
        ("status", b"finished"),
        (
            "summary",
            b'{"worker":"w-1","grant":"grant-1","reward":1.0,"tokens":3,"versions":[[2,"0123456789abcdef"]]}',
        ),
    ]
    assert dict(headers_of(a_task())).keys() == {"type", "task_id", "kind", "group_id", "replica", "attempt"}
    assert headers_of(a_notice()) == [("type", b"WeightVersion")]
