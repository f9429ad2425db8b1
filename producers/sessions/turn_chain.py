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

from schemas import int32_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schemas import Int32Array, Turn


@dataclass(frozen=True, slots=True, eq=False)
class TakenTurn:
    """A turn of a chain; `ids` are the whole input that it was sampled after, and what was sampled.

    They are put together once: every later turn is compared with them.
    """

    ids: Int32Array
    turn: Turn

    @classmethod
    def after(cls, input_ids: Int32Array, turn: Turn) -> TakenTurn:
        """A turn behind its input."""
        return cls(int32_array(np.concatenate((input_ids, turn.token_ids))), turn)

    @property
    def input_ids(self) -> Int32Array:
        """What it was sampled after."""
        return self.ids[: len(self.ids) - len(self.turn.token_ids)]


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """What can be taken over of an attempt, in order; a turn's place is its number."""

    task_id: str
    turns: Sequence[TakenTurn]


def newest_chain(turns: Iterable[Turn], *, earliest_attempt: int, attempt: int) -> Chain | None:
    """The chain of the newest attempt before `attempt` that wrote a turn, none older than `earliest_attempt`.

    `turns` are those of one replica, in the order of the log. Not the longest chain: that would favour rollouts that
    are fast. None where no attempt wrote one, or what the newest wrote hangs together no further than its beginning.
    """
    by_task: dict[str, dict[int, Turn]] = {}
    attempts: dict[str, int] = {}
    for turn in turns:
        if earliest_attempt <= turn.attempt < attempt:
            # What stands first counts: a producer that was unsure may have written it twice.
            by_task.setdefault(turn.task_id, {}).setdefault(turn.number, turn)
            attempts[turn.task_id] = turn.attempt
    newest = max(attempts, key=lambda task_id: attempts[task_id], default=None)
    if newest is None:
        return None
    taken = _chain_of(newest, by_task, attempts)
    return Chain(newest, taken) if taken else None


def _chain_of(task_id: str, by_task: dict[str, dict[int, Turn]], attempts: dict[str, int]) -> list[TakenTurn]:
    own = by_task[task_id]
    base = own[min(own)].base
    taken: list[TakenTurn] = []
    if base is not None:
        # A base is an earlier attempt: what says otherwise is forged, and could lead round in a circle.
        if attempts.get(base.task_id, attempts[task_id]) >= attempts[task_id]:
            return []
        before = _chain_of(base.task_id, by_task, attempts)
        if any(not 0 <= number < len(before) for number in base.numbers):
            return []
        taken = [before[number] for number in base.numbers]
    while (turn := own.get(len(taken))) is not None:
        input_ids = _input_of(turn, taken)
        if input_ids is None:
            break
        taken.append(TakenTurn.after(input_ids, turn))
    return taken


def _input_of(turn: Turn, before: Sequence[TakenTurn]) -> Int32Array | None:
    """The ids of a turn's input; None where the turn names what is not there."""
    if turn.parent < 0:
        return turn.context
    if turn.parent >= len(before):
        return None
    parent = before[turn.parent].ids
    if turn.shared > len(parent):
        return None
    return int32_array(np.concatenate((parent[: turn.shared], turn.context)))


def placed_input(input_ids: Int32Array, before: Sequence[TakenTurn]) -> tuple[int, int]:
    """(parent, shared): the turn whose ids an input begins with furthest, and how far; (-1, 0) where none helps."""
    best = (-1, 0)
    for number, taken in enumerate(before):
        ids = taken.ids
        length = min(len(ids), len(input_ids))
        differs = np.flatnonzero(ids[:length] != input_ids[:length])
        shared = int(differs[0]) if differs.size else length
        # Of equal ones the newest.
        if shared and shared >= best[1]:
            best = (number, shared)
    return best
