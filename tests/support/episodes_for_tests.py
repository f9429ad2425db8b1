"""A game of a fixed number of turns that misbehaves when it is told, for the tests of episodes."""

from __future__ import annotations

import os
import time

from producers.environments.ports import Declaration, Observation, StepResult


class Turns:
    """Says the number of the turn; each is worth a quarter, the seed's last digit is added to the last one."""

    declaration = Declaration("replay")

    def __init__(self, *, num_turns: int = 3, at_turn: int = -1, does: str = "") -> None:
        self._num_turns = num_turns
        self._at_turn = at_turn
        self._does = does
        self._turn = 0
        self._seed = 0

    def reset(self, seed: int) -> Observation:
        self._turn, self._seed = 0, seed
        return Observation.of(f"game {seed}:")

    def step(self, _: str) -> StepResult:
        self._turn += 1
        if self._turn == self._at_turn:
            return self._misbehave()
        is_last = self._turn == self._num_turns
        reward = 0.25 + (self._seed % 10 if is_last else 0)
        return StepResult.of(f"turn {self._turn}", reward=reward, done=is_last)

    def close(self) -> None:
        """Nothing is held."""

    def _misbehave(self) -> StepResult:
        match self._does:
            case "say nothing":
                return StepResult.of("")
            case "hang":
                time.sleep(600)
            case "die":
                os._exit(3)
            case "raise":
                raise KeyError("board")
        raise AssertionError(self._does)
