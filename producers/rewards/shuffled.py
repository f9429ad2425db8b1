"""Rewards of other responses: the negative control, under which nothing can be learned."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from producers.rewards.functions import RewardResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.rewards.ports import Rewards


class ShuffledRewards:
    """The negative control: each response gets the reward that another response earned.

    Rewards are exchanged with a reservoir of earlier ones; the first response of all finds it empty and gets 0. Rewards
    of turns are left out: another response's turns are not this one's.
    """

    def __init__(self, rewards: Rewards, *, seed: int | str, size: int = 256) -> None:
        self._rewards = rewards
        self._random = random.Random(seed)  # noqa: S311  # statistics, not secrets
        self._reservoir: list[float] = []
        self._size = size

    async def start(self) -> None:
        """Start what is shuffled."""
        await self._rewards.start()

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        """Another response's reward; what this one earned is the component `own_reward`."""
        own = await self._rewards.score(prompt, response, fields)
        components = {**own.components, "own_reward": own.reward}
        return RewardResult(reward=self._exchange(own.reward), components=components)

    async def close(self) -> None:
        """Close what is shuffled."""
        await self._rewards.close()

    def _exchange(self, reward: float) -> float:
        if not self._reservoir:
            self._reservoir.append(reward)
            return 0.0
        index = self._random.randrange(len(self._reservoir))
        other = self._reservoir[index]
        if len(self._reservoir) < self._size:
            self._reservoir.append(reward)
        else:
            self._reservoir[index] = reward
        return other
