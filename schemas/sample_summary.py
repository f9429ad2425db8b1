"""What a dispatcher needs of a sample, in one Kafka header: it reads no payload.

The header `summary` is a JSON object beside the headers that name the sample (`schemas.headers`). It repeats the
record and proves nothing: whoever trains reads the record.

| key | of the sample | left out |
| --- | --- | --- |
| `worker`, `grant` | worker_id, grant_id | never |
| `seed` | seed | 0 |
| `reward` | reward | there is none, or it is not finite |
| `tokens` | num_sampled_tokens | 0 |
| `cut` | true: it was cut off before its end | false |
| `versions` | pairs of version and weights digest of its segments, each once, in order | nothing was generated |
| `waits` | true: it waits for its reward | false |
| `cancel` | cancel_reason | there is none |
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.samples import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.samples import Sample, Segment

_most_bytes = 1 << 16
_most_versions = 1 << 10
_largest = (1 << 63) - 1
_text_json = json.JSONEncoder(ensure_ascii=False).encode
"""A text as `json.dumps` writes it, which would make an encoder for each."""
_statuses = {status.value.encode(): status for status in Status}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSummary:
    """What the headers of a training sample say of it. `versions` are (version, weights digest) of its segments."""

    task_id: str
    sample_id: str
    status: Status
    group_id: int
    replica: int
    attempt: int
    worker_id: str
    grant_id: str
    seed: int
    reward: float | None
    num_tokens: int
    is_truncated: bool
    versions: tuple[tuple[int, str], ...]
    awaits_reward: bool
    cancel_reason: str | None


def summary_header(sample: Sample) -> bytes:
    """The header `summary` of a sample."""
    # Written for every sample: one text costs a third of a dict that goes through an encoder.
    facts = f'{{"worker":{_text_json(sample.worker_id)},"grant":{_text_json(sample.grant_id)}'
    if sample.seed:
        facts += f',"seed":{int(sample.seed)}'
    if sample.reward is not None and math.isfinite(sample.reward):
        facts += f',"reward":{float(sample.reward)!r}'
    if num_tokens := sample.num_sampled_tokens:
        facts += f',"tokens":{int(num_tokens)}'
    if sample.is_truncated:
        facts += ',"cut":true'
    if segments := sample.all_segments:
        facts += f',"versions":[{_versions_json(segments)}]'
    if sample.awaits_reward:
        facts += ',"waits":true'
    if sample.cancel_reason is not None:
        facts += f',"cancel":{_text_json(sample.cancel_reason)}'
    return f"{facts}}}".encode()


def _versions_json(segments: Iterable[Segment]) -> str:
    versions = {(int(each.version), each.weights_digest): None for each in segments}
    return ",".join([f"[{version},{_text_json(digest)}]" for version, digest in versions])


def summary_in(headers: Iterable[tuple[str, bytes]]) -> SampleSummary | None:
    """What the headers of a record of `samples` say; None where they lack anything, or say what cannot be.

    Other programs and earlier releases write none, and anybody may be able to write a wrong one: then the record is to
    be read.
    """
    named = dict(headers)
    written = named.get("summary", b"")
    if not written or len(written) > _most_bytes or named.get("kind") != b"training":
        return None
    try:
        return _summary(named, json.loads(written))
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None


def _summary(named: dict[str, bytes], facts: dict[str, Any]) -> SampleSummary:
    """Raises what `summary_in` catches, for what is not as `summary_header` writes it."""
    reward = facts.get("reward")
    cancel_reason = facts.get("cancel")
    return SampleSummary(
        task_id=named["task_id"].decode(),
        sample_id=named["sample_id"].decode(),
        status=_statuses[named["status"]],
        group_id=_identity(named["group_id"]),
        replica=_identity(named["replica"]),
        attempt=_identity(named["attempt"]),
        worker_id=_text(facts["worker"]),
        grant_id=_text(facts["grant"]),
        seed=_number(facts.get("seed", 0)),
        reward=None if reward is None else _finite(reward),
        num_tokens=_number(facts.get("tokens", 0)),
        is_truncated=_flag(facts.get("cut", False)),
        versions=_versions(facts.get("versions", [])),
        awaits_reward=_flag(facts.get("waits", False)),
        cancel_reason=None if cancel_reason is None else _text(cancel_reason),
    )


def _identity(value: bytes) -> int:
    if not value.isdigit():  # of bytes: ASCII digits alone
        raise ValueError("not a number")
    return _number(int(value))


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _largest:
        raise ValueError("not a number of a sample")
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError("not a text")
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError("neither true nor false")
    return value


def _finite(value: object) -> float:
    if type(value) not in (int, float):
        raise ValueError("not a reward")
    number = float(value)  # type: ignore[arg-type]  # one of the two
    if not math.isfinite(number):
        raise ValueError("not a finite reward")
    return number


def _versions(value: object) -> tuple[tuple[int, str], ...]:
    if type(value) is not list or len(value) > _most_versions:
        raise ValueError("not versions")
    return tuple((_number(version), _text(digest)) for version, digest in value)
