"""Calling a user's reward function: found by `module:function`, its value checked."""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from numbers import Real
from pathlib import Path
from typing import Any

from rollog.kernel.errors import DataError, RewardError

RewardFunction = Callable[..., Any]

turns_key = "turn_rewards"
"""Key of a reward function's answer: one number per turn of the response."""
_most_named = 20


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
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything while it is imported
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == module_name
        meant = _meant(module_name, [path.stem for path in Path().glob("*.py")]) if is_missing else ""
        raise DataError(
            f"reward.function = {reference!r} cannot be imported: {type(error).__name__}: {error}; {meant}give "
            "module:function, importable from the current directory or the environment"
        ) from error
    try:
        function = getattr(module, name)
    except AttributeError as error:
        named = [each for each, value in vars(module).items() if callable(value)]
        raise DataError(
            f"reward.function = {reference!r} cannot be imported: module {module_name!r} has no {name!r}; "
            f"{_meant(name, named)}give module:function, importable from the current directory or the environment"
        ) from error
    if not callable(function):
        raise DataError(f"reward.function = {reference!r} is not callable, but {type(function).__name__}")
    return function  # type: ignore[no-any-return]  # getattr knows no type


def _meant(name: str, known: Iterable[str]) -> str:
    """A question where something that is there has nearly that name."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}? Or " if close else ""


def is_concurrent(function: RewardFunction) -> bool:
    """Whether the function is `async def`, so that many of its calls run at once on one event loop."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def call_reward_function(
    function: RewardFunction, prompt: object, response: str, fields: Mapping[str, Any]
) -> RewardResult:
    """Call a plain function and check what it returns. Raises RewardError."""
    try:
        value = function(prompt, response, **fields)
    except RewardError:
        raise  # a ready reward says itself what is wrong
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        raise _raised(function, error, fields) from error
    return _checked(value)


async def await_reward_function(
    function: RewardFunction,
    prompt: object,
    response: str,
    fields: Mapping[str, Any],
    *,
    timeout_seconds: float | None = None,
) -> RewardResult:
    """Await an `async def` function and check what it returns. Raises RewardError, also at the time-out."""
    limit = asyncio.timeout(timeout_seconds)
    try:
        async with limit:
            value = await function(prompt, response, **fields)
    except RewardError:
        raise
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        if limit.expired():
            raise RewardError(f"the reward function took longer than {timeout_seconds:g} s") from error
        raise _raised(function, error, fields) from error
    return _checked(value)


def _raised(function: RewardFunction, error: BaseException, fields: Mapping[str, Any]) -> RewardError:
    place = _place(function, error)
    # Without a place in the user's file the call itself did not fit the function.
    is_about_fields = _is_missing_key(error, fields) or (isinstance(error, TypeError) and not place)
    told = f"; the row has the fields {_names(fields)}" if is_about_fields else ""
    return RewardError(f"the reward function raised {type(error).__name__}{place}: {error}{told}")


def _is_missing_key(error: BaseException, fields: Mapping[str, Any]) -> bool:
    return isinstance(error, KeyError) and not any(str(key) in fields for key in error.args)


def _names(fields: Mapping[str, Any]) -> str:
    """Names of the first fields; those of a wide table would hide the error."""
    names = sorted(fields)
    more = f" and {len(names) - _most_named} more" if len(names) > _most_named else ""
    return ", ".join(names[:_most_named]) + more if names else "none but the prompt's"


def _place(function: RewardFunction, error: BaseException) -> str:
    """Where in the user's own file it was raised, or on the way to where; empty where no line of that file was run."""
    own_file = getattr(inspect.unwrap(function), "__globals__", {}).get("__file__")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own_file]
    return f" at {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""


def _checked(value: object) -> RewardResult:
    if inspect.iscoroutine(value):
        value.close()
        raise RewardError("the reward function returned a coroutine; declare it as `async def`")
    try:
        return _result(value)
    except RewardError:
        raise
    except Exception as error:  # a value may be an object whose own methods raise
        raise RewardError(
            f"the reward function returned a value that cannot be read: {type(error).__name__}: {error}"
        ) from error


def _result(value: object) -> RewardResult:
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
    try:
        number = float(scalar) if isinstance(scalar, Real) else nan
    except OverflowError:  # an integer beyond what a double holds; it may be too long to be printed, too
        raise RewardError(
            f"the reward function returned no finite number as {name}: its size is beyond 1e308"
        ) from None
    if not isfinite(number):
        raise RewardError(f"the reward function returned no finite number as {name}: {str(value)[:200]!r}")
    return number
