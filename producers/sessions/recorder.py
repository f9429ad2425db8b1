"""A session as token ids: which calls go on where another ended, and which fork.

A call extends the longest recorded input + turn that its input begins with. Where that is not the end of its sequence,
or there is none, it begins a fork. Only ids decide: how messages became ids is not known here.

States of a turn, and what becomes of it:

    recorded ──deliver──> delivered        trained, unless a later twin superseded it
       │                      │
       └──── continued <──────┘            trained: a later input begins with its own input and its tokens
    recorded only                          untrained, `undelivered`: the agent never had the whole answer

A twin is a later call of the same input, asked after the whole answer was delivered. It supersedes a turn that nothing
continues once it is continued itself.

Example. Input [1 2] yields turn 0 = [3]. Input [1 2 3 7] yields turn 1 = [4]: it extends turn 0, sequence 0 is now
1 2 | 3 7 4 with mask 1 0 1. Input [1 2 3 8] yields turn 2 = [5]: it begins with turn 0, but sequence 0 goes on, so this
is fork {parent 0, shared 3, context [8], token_ids [5]}. Each sampled token stands once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from producers.sessions.budgets import Call, Spending
from producers.sessions.errors import Overlong, SessionFailed
from producers.sessions.recording import Counted, Fork, Recording, Rows, Turn, Untrained
from schemas import FinishReason, Segment, float32_array, int32_array, uint8_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from producers.engines.ports import Generation
    from producers.sessions.budgets import Budget
    from schemas import Int32Array


@dataclass(eq=False, slots=True)
class _Sequence:
    """All ids of one sequence, of which its parent gives the first `shared`; `turns` are those sampled in it."""

    parent: int
    shared: int
    reason: str
    token_ids: Int32Array
    turns: list[_Turn] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Turn:
    """One call: its tokens are [start, end) of all ids of its sequence, its input the ids before `start`."""

    number: int
    sequence: int
    start: int
    end: int
    generation: Generation
    input_digest: bytes
    asked_at: int
    is_constrained: bool
    delivered_at: int | None = None
    is_continued: bool = False


class Session:
    """Records the calls of one session within its budget. Not thread-safe."""

    def __init__(self, budget: Budget) -> None:
        self._most_forks = budget.forks
        self._spending = Spending(budget)
        self._sequences: list[_Sequence] = []
        self._turns: list[_Turn] = []
        self._twins: dict[bytes, list[_Turn]] = {}
        self._counts: Counter[Counted] = Counter()
        self._wasted_tokens = 0
        self._moment = 0
        self._failure: SessionFailed | None = None
        self._is_out_of_room = False

    @property
    def num_turns(self) -> int:
        """How many calls are recorded."""
        return len(self._turns)

    @property
    def failure(self) -> SessionFailed | None:
        """Why the session can become no sample, as far as that is known."""
        return self._failure

    @property
    def is_spent(self) -> bool:
        """Whether a call was refused because the budget is used up."""
        return self._spending.is_spent

    @property
    def is_out_of_room(self) -> bool:
        """Whether the last call was refused because its input leaves no room in the context."""
        return self._is_out_of_room

    @property
    def counts(self) -> dict[Counted, int]:
        """What is counted of the calls so far, as in the recording."""
        return self._all_counts([self._untrained(turn) for turn in self._turns])

    def ask(self, num_input_tokens: int, max_tokens: int | None = None) -> Call:
        """Reserve a turn for an input of so many tokens. Ends with `record` or `abandon`.

        Raises BudgetSpent, CallsInFlight, Overlong, or the SessionFailed that came before.
        """
        self._check_whole()
        try:
            most = self._spending.reserve(num_input_tokens, max_tokens)
        except Overlong:
            self.note_overlong()
            raise
        self._is_out_of_room = False
        return Call(max_tokens=most, asked_at=self._next_moment())

    def record(
        self,
        input_ids: Sequence[int],
        turn: Generation,
        *,
        call: Call | None = None,
        seen_ids: Sequence[int] | None = None,
        reason: str | None = None,
        is_constrained: bool = False,
        is_delivered: bool = True,
    ) -> int:
        """Record what was sampled after `input_ids`, and return its number, from 0.

        `seen_ids` is the input that the engine reports, where it does. `reason` names a fork, should this be one;
        by default the ids tell. A turn that is not delivered yet needs `deliver`. Raises SessionFailed, and from then
        on always: PromptMismatch, NoTokens, BadLogprob, TooManyForks.
        """
        self._check_whole()
        if call is not None:
            self._spending.release(call.max_tokens)
        asked_at = self._next_moment() if call is None else call.asked_at
        try:
            check_generation(input_ids, turn, seen_ids)
            recorded = self._place(int32_array(input_ids), turn, asked_at, reason, is_constrained)
        except SessionFailed as error:
            self._failure = error
            self._wasted_tokens += len(turn.token_ids)
            raise
        self._spending.use(len(turn.token_ids))
        if is_delivered:
            self.deliver(recorded.number)
        return recorded.number

    def note_overlong(self) -> None:
        """The last call was refused because its input leaves no room in the context."""
        self._is_out_of_room = True

    def abandon(self, call: Call, wasted_tokens: int = 0) -> None:
        """A call ends without a turn; `wasted_tokens` were sampled for it."""
        self._spending.release(call.max_tokens)
        self._wasted_tokens += wasted_tokens

    def deliver(self, number: int) -> None:
        """The whole answer of a turn was handed out. Idempotent."""
        turn = self._turns[number]
        if turn.delivered_at is None:
            turn.delivered_at = self._next_moment()

    def is_delivered(self, number: int) -> bool:
        """Whether the whole answer of a turn was handed out."""
        return self._turns[number].delivered_at is not None

    def count(self, kinds: Iterable[Counted]) -> None:
        """Note what was seen of a call that the ids do not show."""
        self._counts.update(kinds)

    def fail(self, error: SessionFailed) -> None:
        """The session can become no sample. The first reason stays."""
        self._failure = self._failure or error

    def recording(self, digest_of: Callable[[int], str]) -> Recording:
        """The session so far; `digest_of` names the weights of a version. The session may go on.

        Raises SessionFailed: what `record` or `fail` said, or `no_trainable_turn`.
        """
        self._check_whole()
        reasons = [self._untrained(turn) for turn in self._turns]
        if all(reason is not None for reason in reasons):
            raise SessionFailed("no_trainable_turn", _why_nothing_trains(reasons))
        rows = [_rows(sequence, reasons, digest_of) for sequence in self._sequences]
        return Recording(
            rows=rows[0],
            forks=tuple(
                Fork(parent=sequence.parent, shared=sequence.shared, reason=sequence.reason, rows=row)
                for sequence, row in zip(self._sequences[1:], rows[1:], strict=True)
            ),
            turns=tuple(
                _recorded(turn, self._sequences[turn.sequence], reason)
                for turn, reason in zip(self._turns, reasons, strict=True)
            ),
            counts=self._all_counts(reasons),
            wasted_tokens=self._wasted_tokens,
            is_cut=self.is_spent,
        )

    def _check_whole(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _next_moment(self) -> int:
        self._moment += 1
        return self._moment

    def _place(
        self, input_ids: Int32Array, turn: Generation, asked_at: int, reason: str | None, is_constrained: bool
    ) -> _Turn:
        """Put a turn behind its input: at the end of a sequence, or in a fork. Raises SessionFailed."""
        shared = [_common_prefix(sequence.token_ids, input_ids) for sequence in self._sequences]
        before = self._continued_turn(shared)
        digest = hashlib.sha256(input_ids.tobytes()).digest()
        if before is not None and self._is_end(before):
            at = before.sequence
        else:
            at = self._fork(shared, reason or self._fork_reason(before, digest))
        sequence = self._sequences[at]
        sequence.token_ids = int32_array(np.concatenate((input_ids, turn.token_ids)))
        recorded = _Turn(
            number=len(self._turns),
            sequence=at,
            start=len(input_ids),
            end=len(sequence.token_ids),
            generation=turn,
            input_digest=digest,
            asked_at=asked_at,
            is_constrained=is_constrained,
        )
        sequence.turns.append(recorded)
        self._turns.append(recorded)
        self._twins.setdefault(digest, []).append(recorded)
        if before is not None:
            before.is_continued = True
        return recorded

    def _continued_turn(self, shared: Sequence[int]) -> _Turn | None:
        """The turn with the longest input + tokens that an input begins with; `shared` ids with each sequence.

        Of several (equal tokens for an equal input) one that ends its sequence, so that nothing forks without need,
        and then the newest.
        """
        begun_with = [turn for turn in self._turns if turn.end <= shared[turn.sequence]]
        return max(begun_with, key=lambda turn: (turn.end, self._is_end(turn), turn.number), default=None)

    def _is_end(self, turn: _Turn) -> bool:
        return self._sequences[turn.sequence].turns[-1] is turn

    def _fork(self, shared: Sequence[int], reason: str) -> int:
        """Begin a sequence with what it shares with the one that is most like it."""
        if len(self._sequences) > self._most_forks:
            raise SessionFailed(
                "TooManyForks",
                f"the session has {self._most_forks} forks and a call begins another ({reason}); let the agent keep "
                "its history, or raise agent.max_forks",
            )
        parent = int(np.argmax(shared)) if shared else 0
        self._sequences.append(
            _Sequence(
                parent=parent,
                shared=shared[parent] if shared else 0,
                reason=reason,
                token_ids=int32_array(),
            )
        )
        return len(self._sequences) - 1

    def _fork_reason(self, before: _Turn | None, digest: bytes) -> str:
        if digest in self._twins:
            return "repeated"
        return "new_context" if before is None else "branched"

    def _untrained(self, turn: _Turn) -> Untrained | None:
        if turn.is_constrained:
            return Untrained.CONSTRAINED
        if turn.is_continued:
            return None
        if turn.delivered_at is None:
            return Untrained.UNDELIVERED
        twins = self._twins[turn.input_digest]
        is_superseded = any(twin.asked_at > turn.delivered_at and twin.is_continued for twin in twins)
        return Untrained.SUPERSEDED if is_superseded else None

    def _all_counts(self, reasons: Sequence[Untrained | None]) -> dict[Counted, int]:
        counts = Counter(self._counts)
        counts[Counted.FORKS] += max(0, len(self._sequences) - 1)
        counts.update(Counted(reason.value) for reason in reasons if reason is not None)
        return {kind: number for kind, number in counts.items() if number}


def check_generation(
    input_ids: Sequence[int], turn: Generation, seen_ids: Sequence[int] | None = None
) -> None:
    """A turn is what the engine sampled after the input that was sent. Raises SessionFailed."""
    if turn.finish_reason is FinishReason.ABORT:
        raise ValueError("an aborted generation is no turn: give its tokens to `abandon`")
    if seen_ids is not None and list(seen_ids) != list(input_ids):
        at = _common_prefix(int32_array(seen_ids), int32_array(input_ids))
        raise SessionFailed(
            "PromptMismatch",
            f"the engine answered an input of {len(seen_ids)} ids, {len(input_ids)} were sent, and they differ at "
            f"position {at}; nothing of the session can be trained",
        )
    if not len(turn.token_ids):
        raise SessionFailed("NoTokens", "the engine sampled no token; a turn has at least one")
    num_tokens = len(turn.token_ids)
    if len(turn.behaviour_logprobs) != num_tokens or not np.isfinite(turn.behaviour_logprobs).all():
        raise SessionFailed(
            "BadLogprob",
            f"the engine sampled {num_tokens} tokens and {len(turn.behaviour_logprobs)} logprobs, of which "
            f"{int(np.isfinite(turn.behaviour_logprobs).sum())} are finite; each token needs one",
        )
    ends = [0, *(span.end for span in turn.spans)]
    if [span.start for span in turn.spans] != ends[:-1] or ends[-1] != num_tokens:
        raise SessionFailed(
            "BadSpans", f"the versions of a turn cover {turn.spans}, not its {num_tokens} tokens without gaps"
        )


def _common_prefix(left: Int32Array, right: Int32Array) -> int:
    """How many first ids two sequences share."""
    length = min(len(left), len(right))
    differing = np.flatnonzero(left[:length] != right[:length])
    return int(differing[0]) if len(differing) else length


def _rows(sequence: _Sequence, reasons: Sequence[Untrained | None], digest_of: Callable[[int], str]) -> Rows:
    first = sequence.turns[0].start
    length = len(sequence.token_ids) - first
    logprobs, mask = np.zeros(length, dtype="<f4"), np.zeros(length, dtype="u1")
    for turn in sequence.turns:
        tokens = slice(turn.start - first, turn.end - first)
        logprobs[tokens] = turn.generation.behaviour_logprobs
        mask[tokens] = reasons[turn.number] is None
    return Rows(
        context=sequence.token_ids[sequence.shared : first],
        token_ids=sequence.token_ids[first:],
        behaviour_logprobs=float32_array(logprobs),
        loss_mask=uint8_array(mask),
        segments=_segments(sequence.turns, first, digest_of),
    )


def _segments(turns: Sequence[_Turn], first: int, digest_of: Callable[[int], str]) -> tuple[Segment, ...]:
    """Versions of a sequence's tokens; each reaches to the next sampled token, over context in between."""
    begun = [
        (span.version, turn.start - first + span.start) for turn in turns for span in turn.generation.spans
    ]
    changes = [
        (version, start) for at, (version, start) in enumerate(begun) if not at or begun[at - 1][0] != version
    ]
    ends = [start for _, start in changes[1:]] + [turns[-1].end - first]
    return tuple(
        Segment(version=version, weights_digest=digest_of(version), start=start, end=end)
        for (version, start), end in zip(changes, ends, strict=True)
    )


def _recorded(turn: _Turn, sequence: _Sequence, reason: Untrained | None) -> Turn:
    first = sequence.turns[0].start
    return Turn(
        number=turn.number,
        sequence=turn.sequence,
        start=turn.start - first,
        end=turn.end - first,
        finish_reason=turn.generation.finish_reason,
        untrained=reason,
    )


def _why_nothing_trains(reasons: Sequence[Untrained | None]) -> str:
    if not reasons:
        return "the session ended without a turn; does the agent call the policy endpoint?"
    counts = Counter(reason.value for reason in reasons if reason is not None)
    listed = ", ".join(f"{number} {reason}" for reason, number in sorted(counts.items()))
    return f"none of {len(reasons)} turns can be trained: {listed}"
