"""A game of twenty turns in which every step takes a while, so that a kill finds episodes in their middle."""

from __future__ import annotations

import random
import time

from producers.environments.ports import Declaration, Observation, StepResult

num_turns = 20
_longest_step_seconds = 0.4


class LongGame:
    """Answers what was said by a range that the seed draws; who says its lowest number is paid a twentieth."""

    declaration = Declaration("replay", max_turns=num_turns)

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._turn = 0
        self._low = 1

    def reset(self, seed: int) -> Observation:
        """Draw the game of this seed."""
        self._random, self._turn = random.Random(seed), 0
        return Observation.of(self._range())

    def step(self, action: str) -> StepResult:
        """Answer, after a while that is not drawn from the seed: it must not matter."""
        time.sleep(random.uniform(0, _longest_step_seconds))
        self._turn += 1
        reward = 1 / num_turns if action.strip() == str(self._low) else 0.0
        return StepResult.of(f"higher {self._range()}", reward=reward, done=self._turn == num_turns)

    def close(self) -> None:
        """Nothing is held."""

    def _range(self) -> str:
        self._low = self._random.randint(1, 20)
        return f"{self._low} .. {self._low + 12} :"
