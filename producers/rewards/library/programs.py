"""`code`: what a program in the response computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.rewards.code import CodeReward
from rollog.kernel.errors import DataError, SandboxRefused

if TYPE_CHECKING:
    from producers.rewards.functions import RewardFunction
    from rollog.settings.named_rewards import CodeReward as Options


def code_reward(options: Options) -> RewardFunction:
    """The reward function, its sandbox tested: that takes a second, which no call has to spare.

    Raises DataError where the sandbox does not hold.
    """
    reward = CodeReward(
        all_or_nothing=options.all_or_nothing,
        seconds_per_case=options.seconds_per_case,
        total_seconds=options.total_seconds,
    )
    try:
        reward.start()
    except SandboxRefused as error:
        raise DataError(f"the reward 'code' has no sandbox: {error}") from error
    return reward
