"""Records of the `tasks` topic: a RolloutTask orders one rollout, a TaskBatch several; others steer their worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a rollout is for."""

    TRAINING = "training"
    EVALUATION = "evaluation"


class IssueReason(StrEnum):
    """Why the dispatcher issued this attempt."""

    FIRST = "first"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"
    STALE = "stale"
    DEAD = "dead"
    UNREWARDED = "unrewarded"


class CancelReason(StrEnum):
    """Why the dispatcher takes a task back."""

    SATISFIED = "satisfied"
    SURPLUS = "surplus"
    STALE = "stale"
    EVALUATION_GIVEN_UP = "evaluation_given_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How tokens are drawn. Temperature 0 means greedy; `top_k` 0 and `top_p` 1 mean off.

    A response also ends with the token that completes one of the texts in `stop`.
    """

    temperature: float
    max_tokens: int
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One item of the dataset: exactly one of `text` and `messages_json`, and what the reward needs.

    `messages_json` is a JSON list of {"role", "content"}; `reward_inputs_json` a JSON object, the dataset
    row's other fields.
    """

    prompt_id: str
    text: str | None = None
    messages_json: str | None = None
    reward_inputs_json: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTask:
    """The order to make one rollout (or `num_replicas` of them, where prompts are not replicated).

    `ledger_position` and `samples_positions` are the next offsets the dispatcher would have read when it
    issued the task, so that audit can order issue against verdict. Turns of attempts from `resume_attempt` on may be
    taken over; those of the replica stand behind `turns_position` in the sample's partition of `turns`.
    """

    task_id: str
    kind: Kind
    epoch: int
    grant_id: str
    group_id: int
    replica: int
    attempt: int
    seed: int
    prompt: Prompt
    sampling: SamplingParameters
    sample_partition: int
    reward: str
    num_replicas: int = 1
    min_version: int = 0
    issued_version: int = 0
    pinned_version: int | None = None
    evaluation: str | None = None
    issue_reason: IssueReason = IssueReason.FIRST
    protected: bool = False
    timeout_seconds: float = 600.0
    ledger_position: int = 0
    samples_positions: tuple[int, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    turns_position: int | None = None
    resume_attempt: int | None = None


most_tasks_in_record = 256
"""Of one TaskBatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBatch:
    """Several tasks for one worker, as if each stood there by itself in this order. They share the record's offset."""

    tasks: tuple[RolloutTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Take one task back; unknown tasks are ignored."""

    task_id: str
    epoch: int
    grant_id: str
    reason: CancelReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The worker that holds this grant ends its open tasks as cancelled and leaves."""

    epoch: int
    grant_id: str
    reason: str = "end of run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """From here on, tasks of an epoch lower than this one are void."""

    epoch: int


def tasks_in(record: object) -> tuple[RolloutTask, ...]:
    """The tasks that a decoded record orders, in order; none where it is another."""
    match record:
        case RolloutTask() as task:
            return (task,)
        case TaskBatch(tasks=tasks):
            return tasks
    return ()
