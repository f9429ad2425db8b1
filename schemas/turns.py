"""Records of `turns`: the model calls of rollouts that are under way, so that another worker can take one up."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.arrays import ArrayEquality, Float32Array, Int32Array  # the codec resolves annotations
from schemas.samples import FinishReason, Segment  # noqa: TC001


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBase:
    """Turns `numbers` of the chain of an earlier attempt, in the order in which they were served again."""

    task_id: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn(ArrayEquality):
    """One call: the first `shared` ids of turn `parent`'s input and tokens, `context`, then what was sampled.

    `token_ids` and `behaviour_logprobs` have one entry per sampled token; `segments` cover them. The first turn of an
    attempt says its `base`, and their numbers go on behind it; later turns may repeat it.
    """

    task_id: str
    worker_id: str
    group_id: int
    replica: int
    attempt: int
    number: int
    base: TurnBase | None = None
    parent: int = -1
    shared: int = 0
    context: Int32Array
    token_ids: Int32Array
    behaviour_logprobs: Float32Array
    segments: tuple[Segment, ...]
    finish_reason: FinishReason
