"""What an attempt left on `turns`: the calls of a rollout, as another worker takes them over.

An attempt is a branch: its chain are the turns that it took over from its base, then its own. So a worker that was
given up and writes on, writes into its own branch, and nobody has to be fenced.

Example. Attempt 0 wrote turns 0, 1, 2 and was lost. Attempt 1 served turns 0 and 1 again, was asked something else
then, and wrote turn 2 of its own: its base is (attempt 0, turns 0 and 1), its chain 0, 1, 2'. Attempt 2 takes over the
chain of attempt 1, also where attempt 0 goes on writing turn 3 meanwhile.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schemas import Int32Array, Turn, TurnBase

_attempt_bytes = 1024
_number_bytes = 40
"""What Python takes for an attempt of which a turn was read, and for each number of its base."""


@dataclass(frozen=True, slots=True, eq=False)
class TakenTurn:
    """A turn, and the one whose first `turn.shared` ids its input begins with; None where it shares nothing.

    It holds what it adds alone: turns that go on from each other take as much memory as their ids, not their square.
    """

    turn: Turn
    parent: TakenTurn | None = None

    @property
    def num_input_ids(self) -> int:
        """How many ids it was sampled after."""
        return self.turn.shared + len(self.turn.context)

    @property
    def num_ids(self) -> int:
        """Ids of its input, and of what was sampled."""
        return self.num_input_ids + len(self.turn.token_ids)

    def num_shared(self, input_ids: Int32Array, with_parent: int) -> int:
        """How many first ids it has in common with an input that has `with_parent` in common with its parent."""
        shared = self.turn.shared
        if with_parent < shared:
            return with_parent
        for ids in (self.turn.context, self.turn.token_ids):
            same = common_prefix(ids, input_ids[shared:])
            shared += same
            if same < len(ids):
                break
        return shared


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """What can be taken over of an attempt, in order; a turn's place is its number."""

    task_id: str
    turns: Sequence[TakenTurn]


@dataclass(eq=False, slots=True)
class _Attempt:
    """What one attempt wrote: turns below `end` by number, how many bytes each takes, and what all stand behind.

    That is the base of the first turn: what others say is not held.
    """

    attempt: int
    turns: dict[int, Turn] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    first: int = sys.maxsize
    base: TurnBase | None = None
    end: int = sys.maxsize

    @property
    def num_base_bytes(self) -> int:
        return 0 if self.base is None else _number_bytes * len(self.base.numbers)

    def add(self, turn: Turn, num_bytes: int) -> int | None:
        """How many bytes more are held; None where the turn is not."""
        if turn.number >= self.end or turn.number in self.turns:
            return None
        before = self.num_base_bytes
        if turn.number < self.first:
            self.first, self.base = turn.number, turn.base
        self.turns[turn.number] = turn if turn.base is None else replace(turn, base=None)
        self.sizes[turn.number] = num_bytes
        return num_bytes + self.num_base_bytes - before

    def cut(self, end: int) -> int:
        """Hold turns below `end` alone, now and later, and nothing at 0; returns how many bytes that frees."""
        self.end = min(self.end, end)
        num_bytes = 0
        for number in [each for each in self.turns if each >= self.end]:
            del self.turns[number]
            num_bytes += self.sizes.pop(number)
        if not self.end:
            num_bytes += self.num_base_bytes
            self.base = None
        return num_bytes


class Branches:
    """What the attempts from `earliest_attempt` to before `attempt` wrote of one replica, in the order of the log."""

    def __init__(self, *, earliest_attempt: int, attempt: int) -> None:
        self._wanted = range(earliest_attempt, attempt)
        self._attempts: dict[str, _Attempt] = {}
        self.num_bytes = 0
        """About what is held."""

    def add(self, turn: Turn, *, num_bytes: int) -> bool:
        """Take in a turn of so many bytes, those of its base apart; false where nothing is held of it.

        That is so where it is of other attempts, was dropped, or stands there already. What stands first counts: a
        producer that was unsure may have written it twice.
        """
        if turn.attempt not in self._wanted:
            return False
        if turn.task_id not in self._attempts:
            self._attempts[turn.task_id] = _Attempt(turn.attempt)
            self.num_bytes += _attempt_bytes
        own = self._attempts[turn.task_id]
        added = own.add(turn, num_bytes) if own.attempt == turn.attempt else None
        self.num_bytes += added or 0
        return added is not None

    def drop_unneeded(self) -> None:
        """Hold nothing any more, now and later, of what the newest chain is not made of.

        An attempt that comes later and took over something else finds nothing then, and the rollout begins anew. That
        is rare: it took over from an attempt older than the newest, which wrote on behind its back.
        """
        ends: dict[str, int] = {}
        task_id, end = self._newest(), sys.maxsize
        while task_id is not None:
            ends[task_id] = end
            base = self._attempts[task_id].base
            end = 0 if base is None else max(base.numbers, default=-1) + 1
            task_id = self._before(task_id)
        for each, own in self._attempts.items():
            self.num_bytes -= own.cut(max(0, ends.get(each, 0)))

    def newest_chain(self) -> Chain | None:
        """The chain of the newest attempt that wrote a turn.

        Not the longest chain: that would favour rollouts that are fast. None where no attempt wrote one, or what the
        newest wrote hangs together no further than its beginning.
        """
        newest = self._newest()
        taken = [] if newest is None else self._chain_of(newest)
        return Chain(newest, taken) if newest is not None and taken else None

    def _newest(self) -> str | None:
        return max(self._attempts, key=lambda task_id: self._attempts[task_id].attempt, default=None)

    def _before(self, task_id: str) -> str | None:
        """What an attempt took over from, where that is an earlier one of which turns were written.

        What says otherwise is forged, and could lead round in a circle.
        """
        own = self._attempts[task_id]
        before = None if own.base is None else self._attempts.get(own.base.task_id)
        if own.base is None or before is None or before.attempt >= own.attempt:
            return None
        return own.base.task_id

    def _chain_of(self, task_id: str) -> list[TakenTurn]:
        own = self._attempts[task_id]
        taken: list[TakenTurn] = []
        if own.base is not None:
            earlier = self._before(task_id)
            before = [] if earlier is None else self._chain_of(earlier)
            # A turn is served again once; numbers that say otherwise are forged, and could be more than memory takes.
            if len(own.base.numbers) > len(before) or not _are_places(own.base.numbers, len(before)):
                return []
            taken = [before[number] for number in own.base.numbers]
        while (turn := own.turns.get(len(taken))) is not None:
            following = _behind(taken, turn)
            if following is None:
                break
            taken.append(following)
        return taken


def _are_places(numbers: Sequence[int], length: int) -> bool:
    """Whether numbers are places in a list of that length, none of them twice."""
    return len(set(numbers).intersection(range(length))) == len(numbers)


def _behind(taken: Sequence[TakenTurn], turn: Turn) -> TakenTurn | None:
    """A turn behind those before it; None where it names what is not there."""
    if turn.parent < 0:
        return None if turn.shared else TakenTurn(turn)
    if turn.parent >= len(taken) or turn.shared > taken[turn.parent].num_ids:
        return None
    return TakenTurn(turn, taken[turn.parent])


def shared_ids(
    input_ids: Int32Array, turns: Sequence[TakenTurn], known: Mapping[TakenTurn, int] | None = None
) -> list[int]:
    """How many first ids an input has in common with each turn, what was sampled included.

    Each turn is compared where it differs from its parent, so all of them take as long as one input with all ids, and
    less where some numbers are `known` of turns that they go back to.
    """
    shared: dict[TakenTurn, int] = dict(known or {})
    for turn in turns:
        missing: list[TakenTurn] = []
        each: TakenTurn | None = turn
        while each is not None and each not in shared:
            missing.append(each)
            each = each.parent
        for each in reversed(missing):
            with_parent = 0 if each.parent is None else shared[each.parent]
            shared[each] = each.num_shared(input_ids, with_parent)
    return [shared[turn] for turn in turns]


def placed_input(input_ids: Int32Array, before: Sequence[TakenTurn]) -> tuple[int, int]:
    """(parent, shared): the turn whose ids an input begins with furthest, and how far; (-1, 0) where none helps."""
    shared = shared_ids(input_ids, before)
    # Of equal ones the newest.
    best = max(range(len(before)), key=lambda number: (shared[number], number), default=-1)
    return (best, shared[best]) if best >= 0 and shared[best] else (-1, 0)


def common_prefix(left: Int32Array, right: Int32Array) -> int:
    """How many first ids two sequences have in common."""
    length = min(len(left), len(right))
    differs = np.flatnonzero(left[:length] != right[:length])
    return int(differs[0]) if differs.size else length
