"""What a rollout worker needs of rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.rewards.functions import RewardResult


class Rewards(Protocol):
    """Where rewards come from."""

    async def start(self) -> None:
        """Raises DataError when the function cannot be used."""
        ...

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        """The reward of one response. Raises RewardError."""
        ...

    async def close(self) -> None:
        """End all processes; calls that are still open raise RewardError."""
        ...
