"""The user's reward function, called in the worker's own process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from producers.rewards.functions import (
    RewardResult,
    await_reward_function,
    call_reward_function,
    is_concurrent,
)
from producers.rewards.library.catalogue import load_reward

if TYPE_CHECKING:
    from collections.abc import Mapping


class InProcessRewards:
    """The function called right here: no time-out, and a plain one blocks the worker while it runs.

    An `async def` function runs on the worker's own loop, `max_in_flight` calls at once.
    """

    def __init__(self, function: str, *, max_in_flight: int = 64) -> None:
        self._reference = function
        self._places = asyncio.Semaphore(max_in_flight)

    async def start(self) -> None:
        """Import the function."""
        self._function = load_reward(self._reference)

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        """Call it."""
        if not is_concurrent(self._function):
            return call_reward_function(self._function, prompt, response, fields)
        async with self._places:
            return await await_reward_function(self._function, prompt, response, fields)

    async def close(self) -> None:
        """Nothing to end."""
