"""A gymnasium environment of text, registered when this module is imported, and one of numbers."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.spaces import Box, Discrete, Text


class Parrot(gymnasium.Env):  # type: ignore[misc]  # gymnasium is not typed for us
    """Repeats what is said; ends after three turns, or at "stop"."""

    observation_space = Text(100)
    action_space = Text(100)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._turns = 0
        return f"say something, {int(self.np_random.integers(1000))}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turns += 1
        return action, len(action) / 100, action == "stop", self._turns == 3, {}


class Door(gymnasium.Env):  # type: ignore[misc]  # as above
    """Two states that an action opens and closes."""

    observation_space = Discrete(2)
    action_space = Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return 0, {}

    def step(self, action: int) -> tuple[int, int, bool, bool, dict[str, Any]]:
        return action, action, action == 1, False, {}


class Continuous(gymnasium.Env):  # type: ignore[misc]  # as above
    """Neither is text."""

    observation_space = Box(0, 1)
    action_space = Box(0, 1)


gymnasium.register("Parrot-v0", Parrot)
gymnasium.register("Door-v0", Door)
gymnasium.register("Continuous-v0", Continuous)
