"""Nim for two seats: in turn they take objects from one heap; whoever takes the last object wins."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

from producers.environments.ports import Declaration, Observation, StepResult

if TYPE_CHECKING:
    from collections.abc import Mapping

_move = re.compile(r"(\d{1,4})\D+(\d{1,4})")


class Nim:
    """The winner gets 1 and the loser -1. A move that the rules do not know loses the game.

    A move is `heap objects`, both numbers, heaps counted from 1; of several the last one counts. The seed gives the
    heaps and who begins.
    """

    def __init__(self, *, num_heaps: int = 3, largest_heap: int = 7) -> None:
        if num_heaps < 1 or largest_heap < 1:
            raise ValueError(
                f"num_heaps = {num_heaps} and largest_heap = {largest_heap} have to be 1 or more"
            )
        self.declaration = Declaration("replay", num_seats=2, max_turns=num_heaps * largest_heap)
        self._num_heaps = num_heaps
        self._largest_heap = largest_heap
        self._heaps: list[int] = []
        self._seat = 0

    def reset(self, seed: int) -> Observation:
        """Lay the heaps."""
        draw = random.Random(seed)  # noqa: S311  # a game, no secret
        self._heaps = [draw.randint(1, self._largest_heap) for _ in range(self._num_heaps)]
        self._seat = draw.randint(0, 1)
        rules = (
            "There are heaps of objects. In turn, take one or more objects from one heap. Whoever takes the last "
            "object wins. Answer with two numbers: the heap (from 1) and how many you take."
        )
        return Observation({seat: f"{rules}\n{self._position(seat)}" for seat in (0, 1)}, (self._seat,))

    def step(self, action: Mapping[int, str]) -> StepResult:
        """Make the move of the seat whose turn it is."""
        seat, other = self._seat, 1 - self._seat
        move = _last_move(action[seat])
        if move is None or not self._take(*move):
            return _won(other, f"Seat {seat + 1} made no legal move.")
        if not any(self._heaps):
            return _won(seat, f"Seat {seat + 1} took the last object.")
        self._seat = other
        said = f"Seat {seat + 1} took {move[1]} from heap {move[0]}."
        return StepResult(
            Observation({each: f"{said}\n{self._position(each)}" for each in (0, 1)}, (other,)),
            {0: 0.0, 1: 0.0},
        )

    def close(self) -> None:
        """Nothing is held."""

    def _take(self, heap: int, count: int) -> bool:
        """Take objects from a heap, if there are so many."""
        if not 1 <= heap <= self._num_heaps or not 1 <= count <= self._heaps[heap - 1]:
            return False
        self._heaps[heap - 1] -= count
        return True

    def _position(self, seat: int) -> str:
        heaps = ", ".join(f"heap {number}: {count}" for number, count in enumerate(self._heaps, 1))
        turn = "It is your turn." if seat == self._seat else "The other one is to move."
        return f"{heaps}. You are seat {seat + 1}. {turn}"


def _last_move(text: str) -> tuple[int, int] | None:
    moves = _move.findall(text)
    return (int(moves[-1][0]), int(moves[-1][1])) if moves else None


def _won(winner: int, said: str) -> StepResult:
    texts = {seat: f"{said} You {'win' if seat == winner else 'lose'}." for seat in (0, 1)}
    return StepResult(Observation(texts, ()), {winner: 1.0, 1 - winner: -1.0}, frozenset({0, 1}))
