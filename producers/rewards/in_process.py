"""The user's reward function, called in the worker's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from producers.rewards.functions import RewardResult, call_reward_function, load_reward_function

if TYPE_CHECKING:
    from collections.abc import Mapping


class InProcessRewards:
    """The function called right here: no time-out, and it blocks the worker while it runs."""

    def __init__(self, function: str) -> None:
        self._reference = function

    async def start(self) -> None:
        """Import the function."""
        self._function = load_reward_function(self._reference)

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        """Call it."""
        return call_reward_function(self._function, prompt, response, fields)

    async def close(self) -> None:
        """Nothing to end."""
