"""Games for the tests of episodes: of a fixed number of turns, which misbehave when told, and of chance."""

from __future__ import annotations

import json
import os
import random
import time
import zlib
from typing import TYPE_CHECKING

from producers.environments.ports import Declaration, Observation, StepResult

if TYPE_CHECKING:
    from collections.abc import Mapping


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


class RandomGame:
    """A game of several seats whose every move is drawn from seed and actions: who acts, sees, earns and leaves."""

    def __init__(self, *, num_seats: int = 2) -> None:
        self.declaration = Declaration("replay", num_seats=num_seats, max_turns=1000)
        self._num_seats = num_seats
        self._random = random.Random(0)
        self._turn = 0
        self._present: set[int] = set()

    def reset(self, seed: int) -> Observation:
        self._random, self._turn = random.Random(seed), 0
        self._present = set(range(self._num_seats))
        return self._observed(0)

    def step(self, action: Mapping[int, str]) -> StepResult:
        self._turn += 1
        digest = zlib.crc32(json.dumps(sorted(action.items())).encode())
        self._random.seed(digest ^ self._random.getrandbits(32))
        rewards = {
            seat: self._random.randint(-3, 3) / 4
            for seat in range(self._num_seats)
            if self._random.random() < 0.5
        }
        done = {seat for seat in self._present if self._random.random() < 0.06}
        self._present -= done
        if not self._present or self._random.random() < 0.08:
            return StepResult(Observation({0: "over"}, ()), rewards, frozenset(done))
        return StepResult(self._observed(digest), rewards, frozenset(done))

    def close(self) -> None:
        """Nothing is held."""

    def _observed(self, digest: int) -> Observation:
        present = sorted(self._present)
        to_act = self._random.sample(present, self._random.randint(1, len(present)))
        texts = {
            seat: f"<{self._turn} {seat} {digest % 1000}>"
            for seat in range(self._num_seats)
            if seat in to_act or self._random.random() < 0.4
        }
        return Observation(texts, tuple(to_act))


class Pair:
    """Two seats that take turns, seat 0 first; whoever is not asked earns a quarter. Seat 0 may leave after a turn."""

    declaration = Declaration("replay", num_seats=2)

    def __init__(
        self,
        *,
        num_turns: int = 4,
        at_turn: int = -1,
        does: str = "",
        leaves_at: int = -1,
        is_together: bool = False,
    ) -> None:
        self._num_turns = num_turns
        self._leaves_at = leaves_at
        self._is_together = is_together
        self._single = Turns(num_turns=num_turns, at_turn=at_turn, does=does)
        self._turn = 0
        self._has_left = False

    def reset(self, seed: int) -> Observation:
        self._turn, self._has_left = 0, False
        self._single.reset(seed)
        return self._observed(f"game {seed}:")

    def step(self, action: Mapping[int, str]) -> StepResult:
        said = self._single.step("").observation.text
        self._turn += 1
        rewards = {seat: 0.25 for seat in (0, 1) if seat not in action}
        if self._turn == self._leaves_at:
            self._has_left = True
        done = frozenset({0} if self._has_left else ())
        if self._turn == self._num_turns:
            return StepResult(Observation({}, ()), rewards | {0: rewards.get(0, 0.0) + 1.0}, done)
        return StepResult(self._observed(said), rewards, done)

    def close(self) -> None:
        """Nothing is held."""

    def _observed(self, text: str) -> Observation:
        seats = (1,) if self._has_left else ((0, 1) if self._is_together else (self._turn % 2,))
        return Observation(dict.fromkeys(seats, text), seats)


class OutsideTurns(Turns):
    """The same, but what it does cannot be done twice."""

    declaration = Declaration("none")


class ForgetfulTurns(Turns):
    """The same in other words."""

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        text = f"again {result.observation.text}"
        return StepResult.of(text, reward=result.reward, done=result.is_over)
