"""Which function a configured reward means. What a reward needs is imported only where it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from producers.rewards.functions import RewardFunction, load_reward_function
from producers.rewards.summed import weighted_function

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollog.settings.named_rewards import RewardComponent

makers: Mapping[str, str] = {
    "code": "programs:code_reward",
    "exact": "texts:exact_reward",
    "format": "texts:format_reward",
    "judge": "judge:judge_reward",
    "length": "lengths:length_reward",
    "math": "mathematics:math_reward",
    "numeric": "texts:numeric_reward",
}
"""By name of a reward, the module of this package and the function in it that makes a reward of the options."""


def load_reward(reference: str) -> RewardFunction:
    """What `module:function`, a ready reward's name, or components as JSON mean. Raises DataError."""
    if reference.startswith("["):
        from rollog.settings.named_rewards import components_from_text  # noqa: PLC0415 - pydantic takes long

        return weighted_function([(each, function_of(each)) for each in components_from_text(reference)])
    if reference not in makers:
        return load_reward_function(reference)
    from rollog.settings.named_rewards import component_named  # noqa: PLC0415 - pydantic takes long

    return function_of(component_named(reference))


def function_of(component: RewardComponent) -> RewardFunction:
    """The function of one component. Raises DataError when what it needs is not there."""
    if component.name not in makers:
        return load_reward_function(component.name)
    module, _, maker = makers[component.name].partition(":")
    made: RewardFunction = getattr(import_module(f"producers.rewards.library.{module}"), maker)(component)
    return made
