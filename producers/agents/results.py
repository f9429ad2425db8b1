"""What an agent's function returned, checked: its answer, and where it has one its reward."""

from __future__ import annotations

from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from producers.agents.ports import AgentResult
from producers.rewards.functions import RewardResult
from rollog.kernel.errors import AgentFailed

if TYPE_CHECKING:
    from collections.abc import Mapping


def result_of(given: Mapping[str, Any]) -> AgentResult:
    """The result out of `answer`, `reward`, `components` and `turn_rewards`. Raises AgentFailed, naming the value."""
    answer = given.get("answer")
    if not isinstance(answer, str | None):
        raise AgentFailed(f"the agent returned answer = {_shown(answer)}, which is no text")
    if given.get("reward") is None:
        return AgentResult(answer=answer)
    components, turns = given.get("components") or {}, given.get("turn_rewards") or []
    if not isinstance(components, dict) or not isinstance(turns, list):
        raise AgentFailed("the agent returned components that are no dict, or turn_rewards that are no list")
    reward = RewardResult(
        reward=_number("reward", given["reward"]),
        components={str(name): _number(str(name), value) for name, value in components.items()},
        turn_rewards=tuple(_number(f"turn_rewards[{at}]", value) for at, value in enumerate(turns)),
    )
    return AgentResult(answer=answer, reward=reward)


def _number(name: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float) else nan
    except OverflowError:  # an integer beyond what a double holds
        number = nan
    if not isfinite(number):
        raise AgentFailed(f"the agent returned {name} = {_shown(value)}, which is no finite number")
    return number


def _shown(value: object) -> str:
    return str(value)[:200]
