"""The reward as a sum: weighted components within one process, and what several processes give, added up.

Example: `math` gives 1 (weight 1), `length` gives -0.4 (weight 0.5). The reward is 1 - 0.2 = 0.8, and the record's
components are {"math": 1, "length": -0.4}.
"""

from __future__ import annotations

import asyncio
from math import fsum
from typing import TYPE_CHECKING, Any

from producers.rewards.functions import (
    RewardFunction,
    RewardResult,
    await_reward_function,
    call_reward_function,
    is_concurrent,
    turns_key,
)
from rollog.kernel.errors import RewardError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence

    from producers.rewards.ports import Rewards
    from rollog.settings.named_rewards import RewardComponent

Part = tuple["RewardComponent", RewardFunction]
"""A component and what computes it."""


class SummedRewards:
    """Several rewards, each with processes of its own; a call asks all of them at once."""

    def __init__(self, parts: Sequence[Rewards]) -> None:
        self._parts = parts

    async def start(self) -> None:
        """Start all. Raises DataError when one cannot be used, after all have tried."""
        outcomes = await asyncio.gather(*(part.start() for part in self._parts), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        """The sum. Raises RewardError as soon as one of them does."""
        return added(await _all_or_none(part.score(prompt, response, fields) for part in self._parts))

    async def close(self) -> None:
        """Close all."""
        await asyncio.gather(*(part.close() for part in self._parts))


def weighted_function(parts: Sequence[Part]) -> RewardFunction:
    """The weighted sum of components as one function; it is `async def` where one of them is."""

    def computed(prompt: object, response: str, /, **fields: Any) -> dict[str, Any]:
        return _as_answer([_called(part, prompt, response, fields) for part in parts])

    async def awaited(prompt: object, response: str, /, **fields: Any) -> dict[str, Any]:
        return _as_answer(await _all_or_none(_awaited(part, prompt, response, fields) for part in parts))

    return awaited if any(is_concurrent(function) for _, function in parts) else computed


def added(results: Sequence[RewardResult]) -> RewardResult:
    """The sum of rewards, with the components of all.

    Where some give rewards of turns, these are added turn by turn, and what the others give comes with the last turn.
    Raises RewardError where two differ in the number of turns.
    """
    components = {name: value for result in results for name, value in result.components.items()}
    reward = fsum(result.reward for result in results)
    by_turn = [result.turn_rewards for result in results if result.turn_rewards]
    if not by_turn:
        return RewardResult(reward=reward, components=components)
    if len({len(turns) for turns in by_turn}) > 1:
        raise RewardError(
            f"components returned turn_rewards for different numbers of turns: {sorted(map(len, by_turn))}; "
            "each must give one for each turn of the response"
        )
    *turns, last = (fsum(turn) for turn in zip(*by_turn, strict=True))
    last += fsum(result.reward for result in results if not result.turn_rewards)
    return RewardResult(reward=reward, components=components, turn_rewards=(*turns, last))


def _called(part: Part, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
    component, function = part
    try:
        return _weighted(component, call_reward_function(function, prompt, response, fields))
    except RewardError as error:
        raise _of_component(component, error) from error


async def _awaited(part: Part, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
    component, function = part
    if not is_concurrent(function):
        return _called(part, prompt, response, fields)
    try:
        return _weighted(component, await await_reward_function(function, prompt, response, fields))
    except RewardError as error:
        raise _of_component(component, error) from error


def _weighted(component: RewardComponent, result: RewardResult) -> RewardResult:
    """The result times the component's weight; its values without it, under the component's name."""
    name, weight = component.recorded_as, component.weight
    return RewardResult(
        reward=weight * result.reward,
        components={name: result.reward}
        | {f"{name}.{inner}": value for inner, value in result.components.items()},
        turn_rewards=tuple(weight * reward for reward in result.turn_rewards),
    )


def _of_component(component: RewardComponent, error: RewardError) -> RewardError:
    return RewardError(f"component {component.recorded_as!r}: {error}")


def _as_answer(results: Sequence[RewardResult]) -> dict[str, Any]:
    """The sum in the form in which a reward function returns it."""
    result = added(results)
    answer = {"reward": result.reward, **result.components}
    return answer | ({turns_key: list(result.turn_rewards)} if result.turn_rewards else {})


async def _all_or_none(calls: Iterable[Coroutine[Any, Any, RewardResult]]) -> list[RewardResult]:
    """All results; when one call raises RewardError, the others are cancelled and it is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call, name="reward component") for call in calls]
    except* RewardError as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
