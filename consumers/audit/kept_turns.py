"""I15: every sampled turn of a trained sample stands on `turns` as it is in the sample, behind the same ids.

A turn is kept before anybody acts on it, so one that is not there was answered without being durable, or is another.
What a turn was sampled after follows from its parent: the ids that it shares with it, which are compared there, then
its own context. Of each turn a few numbers are held until the end.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from schemas import Sample, SchemaError, Turn, turn_numbers
from schemas.codec import decode_as

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consumers.audit.findings import Check, Place
    from rollog.kernel.broker.ports import Record
    from schemas import Float32Array, Int32Array, Row, Segment

_num_digest_bytes = 16


@dataclass(frozen=True, slots=True)
class _Kept:
    """One turn of the log: what was sampled, how many ids it stands behind, and the last of these."""

    content: bytes
    num_input_ids: int
    num_context_ids: int
    context: bytes


@dataclass(slots=True)
class KeptTurns:
    """Takes in the records of `turns`, then every trained sample. With `is_cut` turns may have been deleted."""

    check: Check
    is_kept: bool = False
    is_cut: bool = False
    num_unreadable: int = 0
    _own: defaultdict[str, dict[int, _Kept]] = field(default_factory=lambda: defaultdict(dict))
    _base: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """One turn; what cannot be read is nobody's."""
        try:
            if record.unread is not None:
                raise SchemaError(record.unread.reason)  # noqa: TRY301 - one way for all that is no turn
            turn = decode_as(Turn, record.value or b"")
        except SchemaError:
            self.num_unreadable += 1
            return
        if turn.base is not None:
            self._base.setdefault(turn.task_id, (turn.base.task_id, turn.base.numbers))
        self._own[turn.task_id].setdefault(
            turn.number,
            _Kept(
                content=_content(turn.token_ids, turn.behaviour_logprobs, turn.segments),
                num_input_ids=turn.shared + len(turn.context),
                num_context_ids=len(turn.context),
                context=_digest(turn.context.tobytes()),
            ),
        )

    def trained(self, sample: Sample, place: Place) -> None:
        """Look up every turn of a trained sample in the chain of its attempt."""
        if not self.is_kept:
            return
        turns = list(_turns_of(sample)) if sample.payload is None else None
        if turns is None:
            self.check.num_unchecked += len(sample.turns)
            return
        chain = self._chain(sample.task_id, set()) or self._chain(sample.resumed_from or "", set())
        kept: defaultdict[bytes, list[_Kept]] = defaultdict(list)
        for each in chain:
            kept[each.content].append(each)
        for name, content, input_ids in turns:
            if not kept and self.is_cut:
                self.check.num_unchecked += 1
                continue
            self.check.num_checked += 1
            if not any(_stands_behind(each, input_ids) for each in kept[content]):
                self.check.find(
                    f"{name} is not on the log as it is in the sample",
                    place=place,
                    record_id=sample.sample_id,
                    expected=f"one of the {len(chain)} turns of task {sample.task_id}",
                    found=f"{len(kept[content])} with these tokens, behind other ids",
                )

    def _chain(self, task_id: str, seen: set[str]) -> list[_Kept]:
        """What an attempt took over, then its own turns; nothing where bases lead round."""
        if task_id in seen:
            return []
        seen.add(task_id)
        own = self._own.get(task_id, {})
        chain: list[_Kept] = []
        if task_id in self._base:
            base, numbers = self._base[task_id]
            before = self._chain(base, seen)
            chain = [before[number] for number in numbers if number < len(before)]
        while len(chain) in own:
            chain.append(own[len(chain)])
        return chain


def _turns_of(sample: Sample) -> Iterator[tuple[str, bytes, Int32Array]]:
    """Name, content and input of each turn: of `turns`, or of each stretch with loss mask 1."""
    rows = sample.rows()
    if sample.turns:
        for turn in sample.turns:
            yield _turn_of(rows[turn.sequence], f"turn {turn.number}", turn.start, turn.end)
        return
    numbers = turn_numbers(sample.loss_mask)
    for number in range(int(numbers.max(initial=-1)) + 1):
        places = np.flatnonzero(numbers == number)
        yield _turn_of(rows[0], f"turn {number}", int(places[0]), int(places[-1]) + 1)


def _turn_of(row: Row, name: str, start: int, end: int) -> tuple[str, bytes, Int32Array]:
    content = _content(
        row.token_ids[start:end], row.behaviour_logprobs[start:end], _within(row.segments, start, end)
    )
    return name, content, np.concatenate((row.prompt_token_ids, row.token_ids[:start]))


def _within(segments: Sequence[Segment], start: int, end: int) -> list[Segment]:
    """The segments of a stretch of tokens, counted from its first one."""
    return [
        type(segment)(
            version=segment.version,
            weights_digest=segment.weights_digest,
            start=max(segment.start, start) - start,
            end=min(segment.end, end) - start,
        )
        for segment in segments
        if segment.start < end and segment.end > start
    ]


def _content(token_ids: Int32Array, logprobs: Float32Array, segments: Sequence[Segment]) -> bytes:
    spans = [(each.version, each.weights_digest, each.start, each.end) for each in segments]
    return _digest(token_ids.tobytes() + logprobs.tobytes() + repr(spans).encode())


def _stands_behind(kept: _Kept, input_ids: Int32Array) -> bool:
    context = input_ids[len(input_ids) - kept.num_context_ids :]
    return kept.num_input_ids == len(input_ids) and kept.context == _digest(context.tobytes())


def _digest(data: bytes) -> bytes:
    return sha256(data).digest()[:_num_digest_bytes]
