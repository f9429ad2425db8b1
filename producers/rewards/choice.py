"""The rewards that the configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.processes.walls import ProcessWalls
from producers.rewards.in_process import InProcessRewards
from producers.rewards.pool import RewardPool
from producers.rewards.summed import SummedRewards
from rollog.settings.named_rewards import FunctionReward, JudgeReward, components_as_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.rewards.ports import Rewards
    from rollog.settings.generation import RewardConfig
    from rollog.settings.named_rewards import RewardComponent


def make_rewards(function: str | None, config: RewardConfig) -> Rewards:
    """The rewards of a function, or without one of the configured components; not started."""
    if function is not None:
        return _rewards(function, config, config.environment)
    companies = [
        _rewards(components_as_text(each), config, variables_of(each, config))
        for each in in_company(config.components)
    ]
    return companies[0] if len(companies) == 1 else SummedRewards(companies)


def in_company(components: Sequence[RewardComponent]) -> list[list[RewardComponent]]:
    """Components by the processes they share: ready ones that compute, ready ones that wait, each function by itself.

    One that waits runs many calls at once on one loop, which a component that computes would hold up; whether a
    user's function is `async def` is known only where it is imported.
    """
    own: list[list[RewardComponent]] = [
        [component] for component in components if isinstance(component, FunctionReward)
    ]
    ready = [component for component in components if not isinstance(component, FunctionReward)]
    computing = [component for component in ready if not component.waits]
    waiting = [component for component in ready if component.waits]
    return [company for company in (computing, waiting, *own) if company]


def variables_of(company: Sequence[RewardComponent], config: RewardConfig) -> tuple[str, ...]:
    """Names of `reward.environment` that the processes of these components get: the key of a judge is for judges."""
    keys, own_keys = _keys(config.components), _keys(company)
    return tuple(name for name in config.environment if name not in keys or name in own_keys)


def _keys(components: Sequence[RewardComponent]) -> set[str | None]:
    return {component.variable for component in components if isinstance(component, JudgeReward)}


def _rewards(reference: str, config: RewardConfig, environment: tuple[str, ...]) -> Rewards:
    if config.num_processes == 0:
        return InProcessRewards(reference, max_in_flight=config.max_in_flight)
    return RewardPool(
        reference,
        num_processes=config.num_processes,
        timeout_seconds=config.timeout_seconds,
        max_in_flight=config.max_in_flight,
        walls=ProcessWalls(environment=environment, max_memory_bytes=config.max_memory_bytes),
    )
