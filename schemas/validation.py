"""What a record promises beyond its types, checked when it is written and when it is read.

Each check raises SchemaError, naming the value. Freshness, rewards and anything that depends on other records
are judged elsewhere.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.errors import SchemaError
from schemas.ledger import Amend, Close, Genesis, LedgerKind, LedgerRecord, Rebase, Step
from schemas.samples import Sample, Status, num_turns
from schemas.tasks import Kind, RolloutTask
from schemas.weights import WeightVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_bodies: dict[LedgerKind, type[Any] | None] = {
    LedgerKind.GENESIS: Genesis,
    LedgerKind.STEP: Step,
    LedgerKind.VERDICTS: None,
    LedgerKind.AMEND: Amend,
    LedgerKind.REBASE: Rebase,
    LedgerKind.CLOSE: Close,
}


most_attempts = 1 << 31
"""More than any rollout is ordered."""


def check_sample(sample: Sample) -> None:
    """Attempts, versions and tokens count from 0, or say that they are unknown. A finished sample is complete.

    Complete: arrays of one length, segments that cover it, finite numbers, a reward for each turn or for none.
    """
    _check_counts(sample)
    if sample.status is Status.FINISHED:
        _check_finished(sample)


def _check_counts(sample: Sample) -> None:
    if sample.wasted_tokens < 0:
        raise SchemaError(
            f"sample {sample.sample_id}: wasted_tokens is {sample.wasted_tokens}, not a number of tokens"
        )
    if not -1 <= sample.attempt < most_attempts:
        raise SchemaError(f"sample {sample.sample_id}: attempt is {sample.attempt}, not a number of attempts")
    for segment in sample.segments:
        if segment.version < 0:
            raise SchemaError(
                f"sample {sample.sample_id}: a segment of version {segment.version}, versions begin at 0"
            )


def _check_finished(sample: Sample) -> None:
    num_tokens = len(sample.token_ids)
    if len(sample.behaviour_logprobs) != num_tokens or len(sample.loss_mask) != num_tokens:
        raise SchemaError(
            f"sample {sample.sample_id}: token_ids has {num_tokens} entries, behaviour_logprobs "
            f"{len(sample.behaviour_logprobs)}, loss_mask {len(sample.loss_mask)}; they must be equal"
        )
    _check_segments(sample, num_tokens)
    if sample.reward is not None and not isfinite(sample.reward):
        raise SchemaError(f"sample {sample.sample_id}: reward is {sample.reward}, not a finite number")
    if sample.turn_rewards:
        _check_turn_rewards(sample)
    if sample.kind is Kind.TRAINING:
        _check_logprobs(sample)


def _check_turn_rewards(sample: Sample) -> None:
    expected = num_turns(sample.loss_mask)
    if len(sample.turn_rewards) != expected:
        raise SchemaError(
            f"sample {sample.sample_id}: turn_rewards has {len(sample.turn_rewards)} entries, its loss mask "
            f"{expected} turns; they must be equal"
        )
    for number, reward in enumerate(sample.turn_rewards):
        if not isfinite(reward):
            raise SchemaError(
                f"sample {sample.sample_id}: turn_rewards[{number}] is {reward}, not a finite number"
            )


def _check_segments(sample: Sample, num_tokens: int) -> None:
    position = 0
    for segment in sample.segments:
        if segment.start != position or segment.end <= segment.start:
            raise SchemaError(
                f"sample {sample.sample_id}: segment [{segment.start}, {segment.end}) of version "
                f"{segment.version} does not begin at token {position} or is empty"
            )
        position = segment.end
    if position != num_tokens:
        raise SchemaError(
            f"sample {sample.sample_id}: segments cover {position} of {num_tokens} response tokens"
        )


def _check_logprobs(sample: Sample) -> None:
    logprobs = sample.behaviour_logprobs
    finite = np.isfinite(logprobs)
    if finite.all():
        return
    trained = np.flatnonzero(~finite & (sample.loss_mask != 0))
    if trained.size:
        position = int(trained[0])
        raise SchemaError(
            f"sample {sample.sample_id}: behaviour_logprobs[{position}] is "
            f"{logprobs[position]}, but that token is to be trained"
        )


def check_rollout_task(task: RolloutTask) -> None:
    """A prompt is given in one form, at least one rollout is ordered, and nothing that counts is negative."""
    if (task.prompt.text is None) == (task.prompt.messages_json is None):
        raise SchemaError(
            f"task {task.task_id}: prompt {task.prompt.prompt_id} needs exactly one of text and messages_json"
        )
    if task.num_replicas < 1:
        raise SchemaError(f"task {task.task_id}: num_replicas is {task.num_replicas}, at least 1 is needed")
    for name in ("group_id", "replica", "attempt", "sample_partition", "min_version"):
        if getattr(task, name) < 0:
            raise SchemaError(f"task {task.task_id}: {name} is {getattr(task, name)}, at least 0 is needed")
    if task.attempt >= most_attempts:
        raise SchemaError(f"task {task.task_id}: attempt is {task.attempt}, not a number of attempts")
    if not task.timeout_seconds > 0:
        raise SchemaError(
            f"task {task.task_id}: timeout_seconds is {task.timeout_seconds}, more than 0 is needed"
        )


def check_weight_version(notice: WeightVersion) -> None:
    """The name is a plain file name: it can lead nowhere but into the run's weights store."""
    if notice.name in {"", ".", ".."} or any(character in notice.name for character in "/\\\0"):
        raise SchemaError(f"weights of version {notice.version}: {notice.name!r} is not a plain file name")


def check_ledger_record(record: LedgerRecord) -> None:
    """The body fits the kind; later parts of a split record may go without one."""
    expected = _bodies[record.kind]
    may_lack_body = expected is None or record.part > 0
    if not (may_lack_body if record.body is None else type(record.body) is expected):
        raise SchemaError(
            f"ledger record {record.sequence} of kind {record.kind} cannot have a body of type "
            f"{type(record.body).__name__}"
        )
    if not 0 <= record.part < record.num_parts:
        raise SchemaError(f"ledger record {record.sequence} is part {record.part} of {record.num_parts}")


checks: Mapping[type[Any], Callable[[Any], None]] = {
    Sample: check_sample,
    RolloutTask: check_rollout_task,
    WeightVersion: check_weight_version,
    LedgerRecord: check_ledger_record,
}
"""The check of each record that has one."""
