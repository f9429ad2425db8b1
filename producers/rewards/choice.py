"""The rewards that the configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.rewards.in_process import InProcessRewards
from producers.rewards.pool import RewardPool

if TYPE_CHECKING:
    from producers.rewards.ports import Rewards
    from rollog.settings.generation import RewardConfig


def make_rewards(function: str, config: RewardConfig) -> Rewards:
    """The rewards that the configuration asks for, not started."""
    if config.num_processes == 0:
        return InProcessRewards(function)
    return RewardPool(function, num_processes=config.num_processes, timeout_seconds=config.timeout_seconds)
