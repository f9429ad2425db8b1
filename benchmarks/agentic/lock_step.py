"""Episodes in lock-step: nobody's next turn begins before the slowest environment of the round has answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from producers.environments.pool import EnvironmentPool

if TYPE_CHECKING:
    from producers.environments.names import EnvironmentSpec
    from producers.environments.pool import EpisodeHandle
    from producers.environments.ports import Action, StepResult
    from producers.environments.process import EnvironmentLimits


class LockStepPool(EnvironmentPool):
    """A pool whose episodes wait for each other after every step: `num_episodes` of them play at once, none ends alone.

    They begin together and have equally many turns; the environments themselves are those of every pool.
    """

    def __init__(self, limits: EnvironmentLimits, num_episodes: int) -> None:
        super().__init__(limits)
        self._round = asyncio.Barrier(num_episodes)

    async def open(self, spec: EnvironmentSpec, seed: int) -> EpisodeHandle:
        """An episode that steps with the others."""
        episode = await super().open(spec, seed)
        return cast("EpisodeHandle", _InStep(episode, self._round))


class _InStep:
    """An episode that answers when all have: everything but `step` is its own."""

    def __init__(self, episode: EpisodeHandle, others: asyncio.Barrier) -> None:
        self._episode = episode
        self._others = others

    async def step(self, action: Action) -> StepResult:
        """The episode's result, once every other one of the round has its own."""
        result = await self._episode.step(action)
        await self._others.wait()
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._episode, name)
