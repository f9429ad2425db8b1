"""The record in which a task ends: `samples` for training, `evaluations` for held-out prompts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from schemas.arrays import (
    ArrayEquality,
    Float32Array,
    Int32Array,
    UInt8Array,
    float32_array,
    int32_array,
    uint8_array,
)
from schemas.tasks import Kind  # noqa: TC001  # the codec resolves the annotations at run time


class Status(StrEnum):
    """How a task ended. Only a finished sample is scored and trainable."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    LOST = "lost"


class FinishReason(StrEnum):
    """Why generation stopped."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Response tokens [start, end) generated under one policy version.

    `weights_digest` is the first 16 hexadecimal digits of the sha256 of that version's weights.
    """

    version: int
    weights_digest: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fork(ArrayEquality):
    """A further sequence of a rollout: the first `shared` ids of sequence `parent`, then its own context and tokens.

    Shared ids and context are never trained here, so that each sampled token stands once in a record. `token_ids`,
    `behaviour_logprobs` and `loss_mask` have one entry per token from its first sampled one to its last; `segments`
    cover them.
    """

    parent: int
    shared: int
    context: Int32Array
    token_ids: Int32Array
    behaviour_logprobs: Float32Array
    loss_mask: UInt8Array
    segments: tuple[Segment, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row(ArrayEquality):
    """One sequence as the trainer reads it: all ids before its first sampled token, then those to its last.

    The arrays but the first have one entry per token id; shared ids of a fork stand in `prompt_token_ids`.
    """

    prompt_token_ids: Int32Array
    token_ids: Int32Array
    behaviour_logprobs: Float32Array
    loss_mask: UInt8Array
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSpan:
    """The tokens of one model call: [start, end) in the token ids of `sequence`. `untrained` says why mask is 0."""

    number: int
    sequence: int
    start: int
    end: int
    finish_reason: FinishReason
    untrained: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Names the object that holds the arrays and texts of a sample too large for a record.

    `num_tokens` has the length of `token_ids` of each sequence, the sample's own first.
    """

    sha256: str
    num_bytes: int
    num_prompt_tokens: int
    num_tokens: tuple[int, ...]
    num_trained_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds by the worker's monotonic clock."""

    queued_seconds: float = 0.0
    generation_seconds: float = 0.0
    reward_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample(ArrayEquality):
    """One ended rollout.

    `token_ids`, `behaviour_logprobs` and `loss_mask` have one entry per response token;
    `behaviour_logprobs` (mu) are natural logarithms under the distribution the token was sampled from.
    Segments are in order, without gaps, and cover the response. `turn_rewards` has one entry per turn, or none: of
    `turns` where they are given, else as `turn_numbers` counts them. A session of model calls that do not all extend
    one another has `forks`, which share the reward; `sequences` are all of them.
    """

    sample_id: str
    task_id: str
    kind: Kind
    status: Status
    epoch: int
    grant_id: str
    worker_id: str
    group_id: int
    replica: int
    attempt: int
    prompt_id: str
    seed: int = 0
    temperature: float = 1.0
    prompt_token_ids: Int32Array = field(default_factory=int32_array)
    token_ids: Int32Array = field(default_factory=int32_array)
    behaviour_logprobs: Float32Array = field(default_factory=float32_array)
    loss_mask: UInt8Array = field(default_factory=uint8_array)
    segments: tuple[Segment, ...] = ()
    response_text: str = ""
    reward: float | None = None
    reward_components: dict[str, float] = field(default_factory=dict)
    turn_rewards: tuple[float, ...] = ()
    finish_reason: FinishReason | None = None
    pinned_version: int | None = None
    evaluation: str | None = None
    cancel_reason: str | None = None
    error_class: str | None = None
    error_message: str | None = None
    timings: Timings = field(default_factory=Timings)
    wasted_tokens: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    forks: tuple[Fork, ...] = ()
    turns: tuple[TurnSpan, ...] = ()
    resumed_from: str | None = None
    awaits_reward: bool = False
    payload: Payload | None = None

    @property
    def num_tokens(self) -> int:
        """Length of the response in tokens, wherever its ids stand."""
        return len(self.token_ids) if self.payload is None else next(iter(self.payload.num_tokens), 0)

    @property
    def num_sampled_tokens(self) -> int:
        """How long the rollout is: what the policy said in all sequences, without what an environment answered.

        Tokens of its turns, trained or not; where it names none, tokens with loss mask 1.
        """
        if self.turns:
            return sum(turn.end - turn.start for turn in self.turns)
        if self.payload is not None:
            return self.payload.num_trained_tokens
        num_tokens = int(np.count_nonzero(self.loss_mask))
        for fork in self.forks:
            num_tokens += int(np.count_nonzero(fork.loss_mask))
        return num_tokens

    @property
    def is_truncated(self) -> bool:
        """Whether the response was cut off before its end: at its most tokens, or at the end of the context."""
        return self.finish_reason is FinishReason.LENGTH

    @property
    def first_version(self) -> int | None:
        """Version of the oldest segment of any sequence; None when nothing was generated."""
        return min((segment.version for segment in self.all_segments), default=None)

    @property
    def all_segments(self) -> tuple[Segment, ...]:
        """The segments of every sequence, one after another; each counts in the tokens of its own."""
        if not self.forks:
            return self.segments
        return (*self.segments, *(segment for fork in self.forks for segment in fork.segments))

    @property
    def num_turns(self) -> int:
        """How many turns `turn_rewards` has an entry for, where it has any; 0 where nothing names those of forks."""
        if self.turns or self.forks:
            return len(self.turns)
        return num_turns(self.loss_mask)

    def rows(self) -> tuple[Row, ...]:
        """Every sequence by number, the sample's own first."""
        rows = [
            Row(
                prompt_token_ids=self.prompt_token_ids,
                token_ids=self.token_ids,
                behaviour_logprobs=self.behaviour_logprobs,
                loss_mask=self.loss_mask,
                segments=self.segments,
            )
        ]
        for fork in self.forks:
            parent = rows[fork.parent]
            shared = np.concatenate((parent.prompt_token_ids, parent.token_ids))[: fork.shared]
            rows.append(
                Row(
                    prompt_token_ids=int32_array(np.concatenate((shared, fork.context))),
                    token_ids=fork.token_ids,
                    behaviour_logprobs=fork.behaviour_logprobs,
                    loss_mask=fork.loss_mask,
                    segments=fork.segments,
                )
            )
        return tuple(rows)


def turn_numbers(loss_mask: UInt8Array) -> Int32Array:
    """Per response token the number of its turn, from 0; -1 where the loss mask is 0.

    A turn is a stretch of tokens with loss mask 1: what the policy said until an environment answered.
    """
    is_said = np.concatenate(([False], loss_mask != 0))
    begins = is_said[1:] & ~is_said[:-1]
    return int32_array(np.where(is_said[1:], np.cumsum(begins) - 1, -1))


def num_turns(loss_mask: UInt8Array) -> int:
    """How many turns `turn_numbers` counts."""
    return int(turn_numbers(loss_mask).max(initial=-1)) + 1


def sample_id(group_id: int, replica: int, attempt: int) -> str:
    """Identity of a training sample inside its run: a function of what was ordered, not of who made it."""
    return f"g{group_id}.r{replica}.a{attempt}"
