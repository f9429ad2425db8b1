"""Calling a user's reward function: found by `module:function`, its value checked."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any

from rollog.kernel.errors import DataError, RewardError

RewardFunction = Callable[..., Any]

turns_key = "turn_rewards"
"""Key of a reward function's answer: one number per turn of the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """One reward, what it is made of, and rewards of single turns where these have their own."""

    reward: float
    components: dict[str, float] = field(default_factory=dict)
    turn_rewards: tuple[float, ...] = ()


def load_reward_function(reference: str) -> RewardFunction:
    """The function named `module:function`; the current directory is searched too.

    Raises DataError when it cannot be imported.
    """
    module_name, _, name = reference.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        function = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise DataError(
            f"reward.function = {reference!r} cannot be imported: {type(error).__name__}: {error}; give "
            "module:function, importable from the current directory or the environment"
        ) from error
    if not callable(function):
        raise DataError(f"reward.function = {reference!r} is not callable, but {type(function).__name__}")
    return function  # type: ignore[no-any-return]  # getattr knows no type


def call_reward_function(
    function: RewardFunction, prompt: object, response: str, fields: Mapping[str, Any]
) -> RewardResult:
    """Call it and check what it returns. Raises RewardError."""
    try:
        value = function(prompt, response, **fields)
    except Exception as error:  # a user's function may raise anything
        raise RewardError(f"the reward function raised {type(error).__name__}: {error}") from error
    if not isinstance(value, Mapping):
        return RewardResult(reward=_number("its value", value))
    if "reward" not in value:
        raise RewardError(f"the reward function returned a mapping without the key 'reward': {sorted(value)}")
    components = {
        str(key): _number(str(key), component)
        for key, component in value.items()
        if key not in {"reward", turns_key}
    }
    return RewardResult(
        reward=_number("reward", value["reward"]),
        components=components,
        turn_rewards=_turn_rewards(value.get(turns_key, ())),
    )


def _turn_rewards(value: object) -> tuple[float, ...]:
    if not isinstance(value, (list, tuple)):
        raise RewardError(f"the reward function returned no list as {turns_key}: {str(value)[:200]!r}")
    return tuple(_number(f"{turns_key}[{turn}]", reward) for turn, reward in enumerate(value))


def _number(name: str, value: object) -> float:
    scalar = value.item() if hasattr(value, "item") and not isinstance(value, Real) else value
    if not isinstance(scalar, Real) or not isfinite(scalar):
        raise RewardError(f"the reward function returned no finite number as {name}: {str(value)[:200]!r}")
    return float(scalar)
