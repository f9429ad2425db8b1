"""The rewards that the configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.rewards.in_process import InProcessRewards
from producers.rewards.pool import RewardPool
from producers.rewards.walls import RewardWalls

if TYPE_CHECKING:
    from producers.rewards.ports import Rewards
    from rollog.settings.generation import RewardConfig


def make_rewards(function: str, config: RewardConfig) -> Rewards:
    """The rewards that the configuration asks for, not started."""
    if config.num_processes == 0:
        return InProcessRewards(function, max_in_flight=config.max_in_flight)
    return RewardPool(
        function,
        num_processes=config.num_processes,
        timeout_seconds=config.timeout_seconds,
        max_in_flight=config.max_in_flight,
        walls=RewardWalls(environment=config.environment, max_memory_bytes=config.max_memory_bytes),
    )
