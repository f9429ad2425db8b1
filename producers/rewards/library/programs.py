"""`code`: what a program in the response computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.rewards.code import CodeReward

if TYPE_CHECKING:
    from producers.rewards.functions import RewardFunction
    from rollog.settings.named_rewards import CodeReward as Options


def code_reward(options: Options) -> RewardFunction:
    """The reward function; the sandbox is looked at with its first call."""
    return CodeReward(
        all_or_nothing=options.all_or_nothing,
        seconds_per_case=options.seconds_per_case,
        total_seconds=options.total_seconds,
    )
