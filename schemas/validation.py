"""What a record promises beyond its types, checked when it is written and when it is read.

Each check raises SchemaError, naming the value. Freshness, rewards and anything that depends on other records
are judged elsewhere.
"""

from __future__ import annotations

from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any

from schemas.errors import SchemaError
from schemas.ledger import Amend, Close, Genesis, LedgerKind, LedgerRecord, Rebase, Step
from schemas.rewards import Reward
from schemas.sample_checks import check_sample, gap_in, most_attempts
from schemas.samples import FinishReason, Sample
from schemas.tasks import RolloutTask, TaskBatch, most_tasks_in_record
from schemas.turns import Turn
from schemas.weights import WeightsPruned, WeightVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

weights_identities = ("file", "content")
"""What a sha256 of weights may be of: see `Genesis`."""
most_id_characters = 200
"""Of the sample that a reward names."""

_bodies: dict[LedgerKind, type[Any] | None] = {
    LedgerKind.GENESIS: Genesis,
    LedgerKind.STEP: Step,
    LedgerKind.VERDICTS: None,
    LedgerKind.AMEND: Amend,
    LedgerKind.REBASE: Rebase,
    LedgerKind.CLOSE: Close,
}


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


def check_task_batch(batch: TaskBatch) -> None:
    """It has tasks, not too many, each of which could stand alone."""
    if not 1 <= len(batch.tasks) <= most_tasks_in_record:
        raise SchemaError(f"a batch of {len(batch.tasks)} tasks, 1 to {most_tasks_in_record} are needed")
    for task in batch.tasks:
        check_rollout_task(task)


def check_turn(turn: Turn) -> None:
    """Something was sampled to its end, by known versions throughout; all counts from 0, a parent stands before."""
    name = f"turn {turn.number} of task {turn.task_id}"
    if min(turn.number, turn.group_id, turn.replica, turn.shared) < 0 or not -1 <= turn.parent < turn.number:
        raise SchemaError(
            f"{name}: group {turn.group_id}, replica {turn.replica}, parent {turn.parent}, shared {turn.shared} "
            "cannot be"
        )
    if not 0 <= turn.attempt < most_attempts:
        raise SchemaError(f"{name}: attempt is {turn.attempt}, not a number of attempts")
    if turn.finish_reason is FinishReason.ABORT:
        raise SchemaError(f"{name}: it was aborted, so it is none")
    num_tokens = len(turn.token_ids)
    if min(turn.token_ids.min(initial=0), turn.context.min(initial=0)) < 0:
        raise SchemaError(f"{name}: a token id below 0")
    if not num_tokens or len(turn.behaviour_logprobs) != num_tokens:
        raise SchemaError(
            f"{name}: {num_tokens} token ids and {len(turn.behaviour_logprobs)} log-probabilities; they must be equal "
            "and more than none"
        )
    gap = gap_in(turn.segments, num_tokens)
    if gap is not None or any(segment.version < 0 for segment in turn.segments):
        raise SchemaError(f"{name}: {gap or 'a segment of a version below 0'}")


def check_weight_version(notice: WeightVersion) -> None:
    """The name is a plain file name: it can lead nowhere but into the run's weights store."""
    if notice.name in {"", ".", ".."} or any(character in notice.name for character in "/\\\0"):
        raise SchemaError(f"weights of version {notice.version}: {notice.name!r} is not a plain file name")


def check_weights_pruned(pruned: WeightsPruned) -> None:
    """It names versions, each once and in order, and not version 0, without which nothing can be trained again."""
    versions = pruned.versions
    if not versions or versions[0] < 1 or any(b <= a for a, b in pairwise(versions)):
        raise SchemaError(
            f"pruned versions are {list(versions[:10])}; at least one is needed, from 1 on and ascending"
        )


def check_reward(reward: Reward) -> None:
    """It names a sample, and all its numbers are finite."""
    if not 0 < len(reward.sample_id) <= most_id_characters:
        raise SchemaError(
            f"a reward whose sample_id has {len(reward.sample_id)} characters, 1 to {most_id_characters} are needed"
        )
    values = (reward.reward, *reward.components.values(), *reward.turn_rewards)
    if not all(map(isfinite, values)):
        names = (
            "reward",
            *(f"components[{name!r}]" for name in reward.components),
            *(f"turn_rewards[{number}]" for number in range(len(reward.turn_rewards))),
        )
        name, value = next(pair for pair in zip(names, values, strict=True) if not isfinite(pair[1]))
        raise SchemaError(f"reward of sample {reward.sample_id}: {name} is {value}, not a finite number")


def check_ledger_record(record: LedgerRecord) -> None:
    """The body fits the kind; later parts of a split record may go without one."""
    expected = _bodies[record.kind]
    may_lack_body = expected is None or record.part > 0
    if not (may_lack_body if record.body is None else type(record.body) is expected):
        raise SchemaError(
            f"ledger record {record.sequence} of kind {record.kind} cannot have a body of type "
            f"{type(record.body).__name__}"
        )
    identity = record.body.weights_identity if isinstance(record.body, Genesis) else "file"
    if identity not in weights_identities:
        raise SchemaError(
            f"genesis has weights_identity {identity!r}, known are {' and '.join(weights_identities)}: use the release "
            "of rollog that the run was begun with, or a later one"
        )
    if not 0 <= record.part < record.num_parts:
        raise SchemaError(f"ledger record {record.sequence} is part {record.part} of {record.num_parts}")


checks: Mapping[type[Any], Callable[[Any], None]] = {
    Sample: check_sample,
    RolloutTask: check_rollout_task,
    TaskBatch: check_task_batch,
    Turn: check_turn,
    WeightVersion: check_weight_version,
    WeightsPruned: check_weights_pruned,
    Reward: check_reward,
    LedgerRecord: check_ledger_record,
}
"""The check of each record that has one."""
