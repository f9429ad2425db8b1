"""What judging needs of one record of `samples`, without its payload."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from schemas import Kind, Segment, Status, sample_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rollog.rules.late_rewards import GivenReward
    from schemas import Sample
    from schemas.arrays import Int32Array
    from schemas.sample_summary import SampleSummary

num_digest_bytes = 16


def record_digest(value: bytes | None) -> bytes:
    """The part of a record value's sha256 that the ledger keeps."""
    return sha256(value or b"").digest()[:num_digest_bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLimits:
    """What the run's settings say of every training sample; one that says otherwise is dead.

    `num_replicas` is how many a group has, the redundant ones included; `temperature` that of sampling, by which the
    trainer divides logits. `num_vocabulary` token ids exist, from 0; `max_context_tokens` is the longest prompt plus
    response of one sequence; None where that is not known. With `has_late_rewards` a finished sample may come without
    its reward.
    """

    num_partitions: int
    num_replicas: int
    temperature: float
    num_vocabulary: int | None = None
    max_context_tokens: int | None = None
    has_late_rewards: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleHeader:
    """One record of `samples` as the rules see it.

    `defect` says why the record is dead (undecodable, invalid, of the wrong kind, on the wrong partition);
    group_id and replica are then -1 unless the record's headers name them. `is_by_other` marks a sample of another
    writer than the run's workers, whom the settings name. A finished one without `reward` waits for it; `late_reward`
    is the record that then gave it.

    `segments` and `first_version` are of all sequences: the oldest token of any decides the lag. `num_tokens` is the
    length of the rollout, `Sample.num_sampled_tokens`.
    """

    partition: int
    offset: int
    sample_id: str
    digest: bytes
    task_id: str = ""
    status: Status | None = None
    group_id: int = -1
    replica: int = -1
    attempt: int = -1
    segments: tuple[Segment, ...] = ()
    first_version: int | None = None
    reward: float | None = None
    num_tokens: int = 0
    is_truncated: bool = False
    num_prompt_tokens: int = 0
    wasted_tokens: int = 0
    cancel_reason: str | None = None
    defect: str | None = None
    is_by_other: bool = False
    num_turns: int = 0
    late_reward: GivenReward | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it is a finished sample that has no reward yet."""
        return self.status is Status.FINISHED and self.defect is None and self.reward is None

    @property
    def place(self) -> tuple[int, int]:
        """(partition, offset): the identity of the record."""
        return (self.partition, self.offset)

    @property
    def rollout(self) -> tuple[int, int]:
        """(group, replica): what the sample is an attempt at."""
        return (self.group_id, self.replica)


def vocabulary_size(model_config_json: str) -> int | None:
    """How many token ids a model has, by its configuration; None where that does not say."""
    size = json.loads(model_config_json).get("vocab_size")
    return size if isinstance(size, int) and size > 0 else None


def header_of(
    sample: Sample, *, partition: int, offset: int, digest: bytes, limits: SampleLimits
) -> SampleHeader:
    """The header of a decoded sample, with the defect it has on this topic, if any."""
    return SampleHeader(
        partition=partition,
        offset=offset,
        sample_id=sample.sample_id,
        digest=digest,
        task_id=sample.task_id,
        status=sample.status,
        group_id=sample.group_id,
        replica=sample.replica,
        attempt=sample.attempt,
        segments=sample.all_segments,
        first_version=sample.first_version,
        reward=sample.reward,
        num_tokens=sample.num_sampled_tokens,
        is_truncated=sample.is_truncated,
        num_prompt_tokens=len(sample.prompt_token_ids)
        if sample.payload is None
        else sample.payload.num_prompt_tokens,
        wasted_tokens=sample.wasted_tokens,
        cancel_reason=sample.cancel_reason,
        defect=_defect(sample, partition, limits),
        num_turns=sample.num_turns if sample.awaits_reward else 0,
    )


def header_of_summary(
    summary: SampleSummary, *, partition: int, offset: int, limits: SampleLimits
) -> SampleHeader | None:
    """The header of a sample by what its Kafka headers say; None where the record itself has to be asked.

    Enough to decide what is issued. Nothing is trained by it: digest, defects of tokens and places of segments are
    those of the record, which it does not read.
    """
    is_finished = summary.status is Status.FINISHED
    is_waiting = summary.awaits_reward and summary.reward is None
    if is_finished and (not summary.versions or (summary.reward is None and not is_waiting)):
        return None
    if is_finished and is_waiting and not limits.has_late_rewards:
        return None
    if _defect_of_identity(summary.group_id, summary.replica, partition, limits) is not None:
        return None
    return SampleHeader(
        partition=partition,
        offset=offset,
        sample_id=summary.sample_id,
        digest=b"",
        task_id=summary.task_id,
        status=summary.status,
        group_id=summary.group_id,
        replica=summary.replica,
        attempt=summary.attempt,
        segments=tuple(
            Segment(version=version, weights_digest=digest, start=0, end=0)
            for version, digest in summary.versions
        ),
        first_version=min((version for version, _ in summary.versions), default=None),
        reward=summary.reward,
        num_tokens=summary.num_tokens,
        is_truncated=summary.is_truncated,
        cancel_reason=summary.cancel_reason,
    )


def defective_header(
    *, partition: int, offset: int, value: bytes | None, named: Callable[[str], bytes | None], defect: str
) -> SampleHeader:
    """The header of a record that could not be decoded; `named` looks up its Kafka headers."""
    return SampleHeader(
        partition=partition,
        offset=offset,
        sample_id=_text(named("sample_id")),
        digest=record_digest(value),
        task_id=_text(named("task_id")),
        group_id=_number(named("group_id")),
        replica=_number(named("replica")),
        attempt=_number(named("attempt")),
        defect=defect,
    )


def with_defect(header: SampleHeader, defect: str) -> SampleHeader:
    """The header of a record that turned out to be dead; whose it is stays."""
    return replace(header, defect=defect)


def joined_header(header: SampleHeader, sample: Sample, limits: SampleLimits) -> SampleHeader:
    """The header of a record whose arrays stand in an object, once `sample` has them again."""
    return replace(
        header,
        num_tokens=sample.num_sampled_tokens,
        num_prompt_tokens=len(sample.prompt_token_ids),
        defect=header.defect or _defect(sample, header.partition, limits),
    )


def foreign_header(header: SampleHeader, reason: str) -> SampleHeader:
    """The header of a record that belongs to no group: nothing is counted for or against the one it names."""
    return replace(header, group_id=-1, replica=-1, defect=header.defect or reason)


def _defect(sample: Sample, partition: int, limits: SampleLimits) -> str | None:
    if sample.kind is not Kind.TRAINING:
        return f"a sample of kind {sample.kind} does not belong on this topic"
    return (
        _defect_of_identity(sample.group_id, sample.replica, partition, limits)
        or _defect_of_ending(sample, limits)
        or _defect_of_tokens(sample, limits)
    )


def _defect_of_identity(group_id: int, replica: int, partition: int, limits: SampleLimits) -> str | None:
    if group_id < 0 or replica < 0:
        return f"group {group_id}, replica {replica}: negative identity"
    if replica >= limits.num_replicas:
        return f"replica {replica} of a group that has {limits.num_replicas}"
    wanted = group_id % limits.num_partitions
    if wanted != partition:
        return f"group {group_id} belongs on partition {wanted}, not {partition}"
    return None


def _defect_of_ending(sample: Sample, limits: SampleLimits) -> str | None:
    temperature = limits.temperature
    if sample.status is not Status.FINISHED:
        return None
    if sample.reward is None and sample.awaits_reward and limits.has_late_rewards:
        # Its reward is found by this name.
        name = sample_id(sample.group_id, sample.replica, sample.attempt)
        if sample.sample_id != name:
            return f"it waits for a reward of {sample.sample_id[:80]!r}, but its id is {name}"
    elif sample.reward is None or not math.isfinite(sample.reward):
        return f"a finished sample with reward {sample.reward}"
    if not is_drawn_at(sample, temperature):
        return (
            f"drawn at temperature {sample.temperature}, not {temperature}: sampling.temperature is the run's"
        )
    return "a finished sample without a segment" if sample.first_version is None else None


def _defect_of_tokens(sample: Sample, limits: SampleLimits) -> str | None:
    if sample.status is not Status.FINISHED:
        return None
    return _defect_of_lengths(sample, limits.max_context_tokens) or _defect_of_ids(
        sample, limits.num_vocabulary
    )


def _defect_of_lengths(sample: Sample, max_context_tokens: int | None) -> str | None:
    """Each sequence is read by the model in one piece, so each must fit; together they may be longer."""
    if max_context_tokens is None:
        return None
    lengths = [
        len(sample.prompt_token_ids) + sample.num_tokens,
        *(fork.shared + len(fork.context) + len(fork.token_ids) for fork in sample.forks),
    ]
    for sequence, num_tokens in enumerate(lengths):
        if num_tokens > max_context_tokens:
            place = f" of sequence {sequence}" if sequence else ""
            return f"{num_tokens} tokens of prompt and response{place}, the context has {max_context_tokens}"
    return None


def _defect_of_ids(sample: Sample, num_vocabulary: int | None) -> str | None:
    above = np.inf if num_vocabulary is None else num_vocabulary
    for name, token_ids in _own_ids(sample):
        outside = np.flatnonzero((token_ids < 0) | (token_ids >= above))
        if outside.size:
            position = int(outside[0])
            return (
                f"{name}[{position}] is {token_ids[position]}, outside the model's vocabulary of "
                f"{num_vocabulary or 'ids from 0'}"
            )
    return None


def _own_ids(sample: Sample) -> Iterator[tuple[str, Int32Array]]:
    """Every id of the record, by the name of its field; what forks share stands in their parents."""
    yield "prompt_token_ids", sample.prompt_token_ids
    yield "token_ids", sample.token_ids
    for number, fork in enumerate(sample.forks):
        yield f"forks[{number}].context", fork.context
        yield f"forks[{number}].token_ids", fork.token_ids


def is_drawn_at(sample: Sample, temperature: float) -> bool:
    """Whether its log-probabilities are those of logits divided by this temperature."""
    return math.isclose(sample.temperature, temperature, rel_tol=1e-5)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", errors="replace")[:200]


def _number(value: bytes | None) -> int:
    text = _text(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1  # noqa: PLR2004 - fits int64
