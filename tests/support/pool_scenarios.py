"""Scenarios with a pool of environments, which leave no process behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from producers.environments.names import EnvironmentSpec
from producers.environments.pool import EnvironmentPool
from producers.environments.process import EnvironmentLimits
from rollog.kernel.processes import exists

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


environments = "support.environments_for_tests"
long_seconds = 60.0


def misbehaving(**parameters: Any) -> EnvironmentSpec:
    return EnvironmentSpec(environment=f"{environments}:Misbehaving", parameters=parameters)


def with_pool(
    scenario: Callable[[EnvironmentPool], Coroutine[Any, Any, Any]],
    *,
    num_processes: int = 1,
    step_timeout_seconds: float = long_seconds,
    reset_timeout_seconds: float = long_seconds,
    **limits: Any,
) -> Any:
    async def run() -> Any:
        pool = EnvironmentPool(
            EnvironmentLimits(
                num_processes=num_processes,
                step_timeout_seconds=step_timeout_seconds,
                reset_timeout_seconds=reset_timeout_seconds,
                **limits,
            )
        )
        try:
            return await asyncio.wait_for(scenario(pool), 60)
        finally:
            pids = pool.pids
            await pool.close()
            assert [pid for pid in pids if exists(pid)] == []
            assert pool.pids == []

    return asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # what is waited for happens in another process
            await asyncio.sleep(0.005)


async def plays_on(pool: EnvironmentPool) -> bool:
    """Whether another episode is played as if nothing had happened."""
    episode = await pool.open(misbehaving(), 5)
    first, last = await episode.reset(), await episode.step("end")
    await episode.close()
    return first.text == "seed 5" and last.is_over
