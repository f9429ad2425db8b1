"""Which function a configured reward means. What a reward needs is imported only where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.rewards.functions import RewardFunction, load_reward_function
from producers.rewards.summed import weighted_function
from rollog.kernel.errors import DataError

if TYPE_CHECKING:
    from rollog.settings.named_rewards import RewardComponent


def load_reward(reference: str) -> RewardFunction:
    """What `module:function`, a ready reward's name, or components as JSON mean. Raises DataError."""
    if reference.startswith("["):
        from rollog.settings.named_rewards import components_from_text  # noqa: PLC0415 - pydantic is heavy

        return weighted_function([(each, function_of(each)) for each in components_from_text(reference)])
    if ":" in reference:
        return load_reward_function(reference)
    from rollog.settings.named_rewards import component_named, named_rewards  # noqa: PLC0415

    if reference not in named_rewards:
        return load_reward_function(reference)
    return function_of(component_named(reference))


def function_of(component: RewardComponent) -> RewardFunction:
    """The function of one component. Raises DataError when what it needs is not there."""
    from rollog.settings import named_rewards as named  # noqa: PLC0415

    match component:
        case named.FunctionReward():
            return load_reward_function(component.name)
        case named.MathReward():
            from producers.rewards.library.mathematics import math_reward  # noqa: PLC0415

            return math_reward(component)
        case named.ExactReward():
            from producers.rewards.library.texts import exact_reward  # noqa: PLC0415

            return exact_reward(component)
        case named.NumericReward():
            from producers.rewards.library.texts import numeric_reward  # noqa: PLC0415

            return numeric_reward(component)
        case named.FormatReward():
            from producers.rewards.library.texts import format_reward  # noqa: PLC0415

            return format_reward(component)
        case named.LengthReward():
            from producers.rewards.library.lengths import length_reward  # noqa: PLC0415

            return length_reward(component)
        case named.JudgeReward():
            from producers.rewards.library.judge import judge_reward  # noqa: PLC0415

            return judge_reward(component)
    raise DataError(f"the reward {component.name!r} is declared, but nothing computes it; see {__name__}")
