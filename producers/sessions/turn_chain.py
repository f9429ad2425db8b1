"""What an attempt left on `turns`: the calls of a rollout, as another worker takes them over.

An attempt is a branch: its chain are the turns that it took over from its base, then its own. So a worker that was
given up and writes on, writes into its own branch, and nobody has to be fenced.

Example. Attempt 0 wrote turns 0, 1, 2 and was lost. Attempt 1 served turns 0 and 1 again, was asked something else
then, and wrote turn 2 of its own: its base is (attempt 0, turns 0 and 1), its chain 0, 1, 2'. Attempt 2 takes over the
chain of attempt 1, also where attempt 0 goes on writing turn 3 meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schemas import Int32Array, Turn


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
            same = _common_prefix(ids, input_ids[shared:])
            shared += same
            if same < len(ids):
                break
        return shared


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """What can be taken over of an attempt, in order; a turn's place is its number."""

    task_id: str
    turns: Sequence[TakenTurn]


class Branches:
    """What the attempts from `earliest_attempt` to before `attempt` wrote of one replica, in the order of the log."""

    def __init__(self, *, earliest_attempt: int, attempt: int) -> None:
        self._wanted = range(earliest_attempt, attempt)
        self._turns: dict[str, dict[int, Turn]] = {}
        self._attempts: dict[str, int] = {}

    def add(self, turn: Turn) -> bool:
        """Take a turn in; false where nothing is held of it, because it is of other attempts or stands there already.

        What stands first counts: a producer that was unsure may have written it twice.
        """
        if turn.attempt not in self._wanted or self._attempts.get(turn.task_id, turn.attempt) != turn.attempt:
            return False
        self._attempts[turn.task_id] = turn.attempt
        own = self._turns.setdefault(turn.task_id, {})
        return own.setdefault(turn.number, turn) is turn

    def newest_chain(self) -> Chain | None:
        """The chain of the newest attempt that wrote a turn.

        Not the longest chain: that would favour rollouts that are fast. None where no attempt wrote one, or what the
        newest wrote hangs together no further than its beginning.
        """
        newest = max(self._attempts, key=lambda task_id: self._attempts[task_id], default=None)
        taken = [] if newest is None else self._chain_of(newest)
        return Chain(newest, taken) if newest is not None and taken else None

    def _chain_of(self, task_id: str) -> list[TakenTurn]:
        own = self._turns[task_id]
        base = own[min(own)].base
        taken: list[TakenTurn] = []
        if base is not None:
            # A base is an earlier attempt: what says otherwise is forged, and could lead round in a circle.
            if self._attempts.get(base.task_id, self._attempts[task_id]) >= self._attempts[task_id]:
                return []
            before = self._chain_of(base.task_id)
            # A turn is served again once; numbers that say otherwise are forged, and could be more than memory takes.
            if len(base.numbers) > len(before) or not _are_places(base.numbers, len(before)):
                return []
            taken = [before[number] for number in base.numbers]
        while (turn := own.get(len(taken))) is not None:
            following = _behind(taken, turn)
            if following is None:
                break
            taken.append(following)
        return taken


def newest_chain(turns: Iterable[Turn], *, earliest_attempt: int, attempt: int) -> Chain | None:
    """The chain of the newest attempt before `attempt` that wrote a turn, none older than `earliest_attempt`.

    `turns` are those of one replica, in the order of the log.
    """
    branches = Branches(earliest_attempt=earliest_attempt, attempt=attempt)
    for turn in turns:
        branches.add(turn)
    return branches.newest_chain()


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


def shared_ids(input_ids: Int32Array, turns: Sequence[TakenTurn]) -> list[int]:
    """How many first ids an input has in common with each turn, what was sampled included.

    Each turn is compared where it differs from its parent, so all of them take as long as one input with all ids.
    """
    shared: dict[TakenTurn, int] = {}
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


def _common_prefix(left: Int32Array, right: Int32Array) -> int:
    length = min(len(left), len(right))
    differs = np.flatnonzero(left[:length] != right[:length])
    return int(differs[0]) if differs.size else length
