"""An environment that only takes its time: as long for each answer as its episode drew.

Which episode it is stands in what the policy says, `GROUP/REPLICA/ATTEMPT`: an environment knows its seed, and the
episodes of a group share one. Only the standard library is imported here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.agentic.draws import EpisodeDraw, EpisodeDraws
from producers.environments.ports import Declaration, Observation, StepResult


class TimedEnvironment:
    """Answers each turn after the drawn latency, `speed` engine seconds in a real one; the last turn is worth 1."""

    def __init__(self, *, speed: float, **draws: Any) -> None:
        self._draws = EpisodeDraws(**draws)
        self._speed = speed
        self._drawn: EpisodeDraw | None = None
        self._turn = 0
        self.declaration = Declaration("none", max_turns=self._draws.num_turns)

    async def reset(self, seed: int) -> Observation:
        """Begin at once. The seed is the group's number."""
        self._drawn, self._turn = None, 0
        return Observation.of(f"{seed}:")

    async def step(self, action: str) -> StepResult:
        """Answer when it is time, or never."""
        if self._drawn is None:
            self._drawn = self._draws.of(*(int(number) for number in action.split("/")))
        turn, self._turn = self._turn, self._turn + 1
        if turn == self._drawn.hangs_at:
            await asyncio.Event().wait()
        await asyncio.sleep(self._drawn.latencies[turn] / self._speed)
        is_last = self._turn == self._draws.num_turns
        return StepResult.of(".", reward=float(is_last), done=is_last)

    async def close(self) -> None:
        """Nothing is held."""
