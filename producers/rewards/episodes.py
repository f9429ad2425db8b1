"""The reward that an environment gave, among the other ways to get one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from producers.rewards.functions import RewardResult
from rollog.kernel.errors import RewardError

if TYPE_CHECKING:
    from collections.abc import Mapping

own_reward = "episode"
"""Field under which an episode brings its reward."""


class EpisodeRewards:
    """Hands on what the environment gave: nothing is computed, so nothing has to be started."""

    async def start(self) -> None:
        """Nothing."""

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        """The reward of the episode itself. Raises RewardError where there is none: somebody else was to score it."""
        del prompt, response
        reward = fields.get(own_reward)
        if not isinstance(reward, RewardResult):
            raise RewardError(
                "this worker scores nothing: reward.late is set, and no reward function is named"
            )
        return reward

    async def close(self) -> None:
        """Nothing."""
