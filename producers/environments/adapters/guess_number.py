"""A number from 1 to N is to be guessed; each guess is answered by "higher", "lower" or "right"."""

from __future__ import annotations

import random
import re

from producers.environments.ports import Declaration, Observation, StepResult

_number = re.compile(r"\d{1,18}")


class GuessNumber:
    """The reward is 1 for a number guessed in the first turn, falling by equal parts to 1 / max_turns in the last.

    A guess is the last number that the agent writes. Text without one costs the turn.
    """

    def __init__(self, *, largest: int = 100, max_turns: int = 10) -> None:
        if largest < 1:
            raise ValueError(
                f"largest = {largest} is below 1; give the largest number that may have to be guessed"
            )
        self.declaration = Declaration("replay", max_turns=max_turns)
        self._largest = largest
        self._secret = 0
        self._num_turns = 0

    def reset(self, seed: int) -> Observation:
        """Draw the number."""
        self._secret = random.Random(seed).randint(1, self._largest)  # noqa: S311  # a game, no secret
        self._num_turns = 0
        return Observation.of(
            f"I think of a number from 1 to {self._largest}. Guess it: "
            f"you have {self.declaration.max_turns} guesses, and I answer higher, lower or right."
        )

    def step(self, action: str) -> StepResult:
        """Answer a guess."""
        self._num_turns += 1
        numbers = _number.findall(action)
        if not numbers:
            return StepResult.of("I see no number. Say one.")
        guess = int(numbers[-1])
        if guess == self._secret:
            most = self.declaration.max_turns
            return StepResult.of("right", reward=(most - self._num_turns + 1) / most, done=True)
        return StepResult.of("higher" if guess < self._secret else "lower")

    def close(self) -> None:
        """Nothing is held."""
