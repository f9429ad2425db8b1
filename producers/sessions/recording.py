"""What a session comes to: sequences of token ids for the trainer, and the turns that were sampled in them.

Sequence 0 is the sample's own; fork k of `Recording.forks` is sequence k + 1. A fork repeats the first `shared` ids of
its parent, as context, and goes on with its own. So each sampled token stands once.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # read by dataclasses' own annotations
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from schemas.arrays import ArrayEquality

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas import FinishReason, Float32Array, Int32Array, Segment, UInt8Array


class Untrained(StrEnum):
    """Why a turn has loss mask 0."""

    SUPERSEDED = "superseded"
    UNDELIVERED = "undelivered"
    CONSTRAINED = "constrained"


class Counted(StrEnum):
    """What is counted of the calls of a session."""

    FORKS = "forks"
    REJOINED = "rejoined"
    SUPERSEDED = "superseded"
    OVERRIDDEN = "overridden"
    CONSTRAINED = "constrained"
    FOREIGN = "foreign"
    CLOSING = "closing"
    SOFT_BOUNDARY = "soft_boundary"
    STOP_STRING = "stop_string"
    UNDELIVERED = "undelivered"
    REFUSED = "refused"
    OVERLONG = "overlong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The tokens of one call: [start, end) in the token ids of `sequence`. Numbers are in the order of recording."""

    number: int
    sequence: int
    start: int
    end: int
    finish_reason: FinishReason
    untrained: Untrained | None = None

    @property
    def num_tokens(self) -> int:
        """How many tokens were sampled."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows(ArrayEquality):
    """Ids of one sequence from its first sampled token to its last; `context` are its own ids before them.

    `behaviour_logprobs` and `loss_mask` have one entry per token id, 0 for context. `segments` cover the token ids;
    context takes the version of the sampled token before it.
    """

    context: Int32Array
    token_ids: Int32Array
    behaviour_logprobs: Float32Array
    loss_mask: UInt8Array
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fork(ArrayEquality):
    """A sequence that begins with the first `shared` ids of sequence `parent`, which are context here."""

    parent: int
    shared: int
    reason: str
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recording(ArrayEquality):
    """A session as it is trained. `counts` holds the kinds that occurred; `is_cut` says that a budget ended it."""

    rows: Rows
    forks: tuple[Fork, ...] = ()
    turns: tuple[Turn, ...] = ()
    counts: Mapping[Counted, int] = field(default_factory=dict)
    wasted_tokens: int = 0
    is_cut: bool = False

    @property
    def sequences(self) -> Sequence[Rows]:
        """The rows of every sequence, by number."""
        return [self.rows, *(fork.rows for fork in self.forks)]

    @property
    def trained_tokens(self) -> int:
        """How many sampled tokens are trained."""
        return sum(turn.num_tokens for turn in self.turns if turn.untrained is None)

    @property
    def untrained_tokens(self) -> Mapping[Untrained, int]:
        """How many sampled tokens are not, by reason."""
        counts: dict[Untrained, int] = {}
        for turn in self.turns:
            if turn.untrained is not None:
                counts[turn.untrained] = counts.get(turn.untrained, 0) + turn.num_tokens
        return counts

    def ids(self, sequence: int) -> list[int]:
        """All ids of a sequence: what its parent gives it, its context, its tokens."""
        rows = self.sequences[sequence]
        own = [*rows.context.tolist(), *rows.token_ids.tolist()]
        if sequence == 0:
            return own
        fork = self.forks[sequence - 1]
        return [*self.ids(fork.parent)[: fork.shared], *own]
