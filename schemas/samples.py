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

    `weights_digest` is the first 16 hexadecimal digits of the sha256 of that version's weights file.
    """

    version: int
    weights_digest: str
    start: int
    end: int


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
    Segments are in order, without gaps, and cover the response. `turn_rewards` has one entry per turn, as
    `turn_numbers` counts them, or none.
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

    @property
    def num_tokens(self) -> int:
        """Length of the response in tokens."""
        return len(self.token_ids)

    @property
    def is_truncated(self) -> bool:
        """Whether the response was cut off before its end: at its most tokens, or at the end of the context."""
        return self.finish_reason is FinishReason.LENGTH

    @property
    def first_version(self) -> int | None:
        """Version of the oldest segment; None when nothing was generated."""
        return min((segment.version for segment in self.segments), default=None)


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
