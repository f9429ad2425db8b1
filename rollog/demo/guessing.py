"""A game of several turns that the demo's kind of model learns: find a number by guesses.

    9 .. 30 :  20  higher 21 .. 30 :  26  lower 21 .. 25 :  23  right

The ranges and answers are the environment's; the single numbers are the policy's, a turn each. A guess outside of the
newest range is in vain, one in its middle leaves fewest numbers to choose from, and the reward falls with each turn.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from producers.environments.ports import Declaration, Observation, StepResult

if TYPE_CHECKING:
    from collections.abc import Iterator

largest_number = 32
narrowest = 12
"""Fewest numbers in a range."""
max_turns = 6
higher, lower, right, unreadable = answers = ("higher", "lower", "right", "what")
held_out_seeds = 1 << 40
"""Seeds from here on are held-out games."""
_num_folds = 6


@dataclass(frozen=True, slots=True, order=True)
class Game:
    """The range, both ends included, and the number to be found."""

    low: int
    high: int
    secret: int

    @property
    def is_held_out(self) -> bool:
        """Whether no training sees it: by range and secret, so that none is in both."""
        return zlib.crc32(f"{self.low},{self.high},{self.secret}".encode()) % _num_folds == 0


@dataclass(slots=True)
class Played:
    """A game and the range that is left of it."""

    game: Game
    low: int
    high: int

    @classmethod
    def new(cls, game: Game) -> Played:
        """Nothing is guessed yet."""
        return cls(game, game.low, game.high)

    @property
    def range(self) -> str:
        """What is left, as the policy sees it."""
        return f"{self.low} .. {self.high} :"

    def answer(self, guess: int) -> str:
        """What the environment says to a guess, with what is left after it."""
        secret = self.game.secret
        if guess == secret:
            return right
        if guess < secret:
            self.low = max(self.low, guess + 1)
            return f"{higher} {self.range}"
        self.high = min(self.high, guess - 1)
        return f"{lower} {self.range}"


@cache
def games(*, held_out: bool) -> tuple[Game, ...]:
    """All games of one side of the split, in a fixed order that mixes ranges."""
    found = [game for game in _all_games() if game.is_held_out is held_out]
    random.Random(0).shuffle(found)  # noqa: S311 - an order, not a secret
    return tuple(found)


def _all_games() -> Iterator[Game]:
    for low in range(1, largest_number + 1):
        for high in range(low + narrowest - 1, largest_number + 1):
            for secret in range(low, high + 1):
                yield Game(low, high, secret)


def reward_after(num_turns: int) -> float:
    """Of a number found in that turn: 1 in the first, falling by equal parts."""
    return (max_turns - num_turns + 1) / max_turns


class Guessing:
    """The game as an environment; the seed chooses one of `games`."""

    declaration = Declaration("replay", max_turns=max_turns)

    def __init__(self) -> None:
        self._played = Played.new(games(held_out=False)[0])
        self._num_turns = 0

    def reset(self, seed: int) -> Observation:
        """Choose the game of this seed."""
        chosen = games(held_out=seed >= held_out_seeds)
        self._played = Played.new(chosen[seed % held_out_seeds % len(chosen)])
        self._num_turns = 0
        return Observation.of(self._played.range)

    def step(self, action: str) -> StepResult:
        """Answer a guess, which is the only word of the action."""
        self._num_turns += 1
        guess = action.strip()
        if not guess.isascii() or not guess.isdecimal():
            return StepResult.of(f"{unreadable} {self._played.range}")
        answer = self._played.answer(int(guess))
        found = answer == right
        return StepResult.of(answer, reward=reward_after(self._num_turns) if found else 0.0, done=found)

    def close(self) -> None:
        """Nothing is held."""


def demonstration(game: Game, rng: random.Random, *, heed_answers: float) -> Iterator[tuple[int, str]]:
    """Guesses and their answers: each guess heeds the answers before it with that chance, and is a blind one else."""
    played = Played.new(game)
    for _ in range(max_turns):
        heeds = rng.random() < heed_answers
        guess = rng.randint(played.low, played.high) if heeds else rng.randint(game.low, game.high)
        answer = played.answer(guess)
        yield guess, answer
        if answer == right:
            return
