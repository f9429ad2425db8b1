"""Whether the reward function can be imported, and answers one call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from producers.rewards.choice import make_rewards
from producers.rollout.prompts import reward_fields, reward_prompt
from rollog.kernel.errors import DataError, RewardError
from rollog.run.finding import Finding
from rollog.run.preflight.prompts import first_rows

if TYPE_CHECKING:
    from rollog.settings.settings import Settings

_most_seconds = 5.0
trial_response = "42"
"""What the function is asked to judge: a text that a model could write."""


def one_call(settings: Settings) -> list[Finding]:
    """One call on the first row, in a process as a worker has them. Raises DataError."""
    if settings.environment.name is not None:
        return [Finding(what="reward function", found="the environment's")]
    if settings.agent.reward == "agent":
        return [Finding(what="reward function", found="the agent's")]
    identity = settings.reward.identity
    if identity is None and settings.reward.late:
        return [Finding(what="reward function", found="none: rewards come through the topic rewards")]
    if identity is None or settings.data.train is None:
        return [Finding(what="reward function", found="the demo's" if identity is None else identity)]
    prompt = first_rows(settings, 1)[0]
    rewards = make_rewards(settings.reward.function, settings.reward.model_copy(update={"num_processes": 1}))

    async def ask() -> float:
        try:
            await rewards.start()
            async with asyncio.timeout(_most_seconds):
                scored = await rewards.score(reward_prompt(prompt), trial_response, reward_fields(prompt))
            return scored.reward
        finally:
            await rewards.close()

    try:
        reward = asyncio.run(ask())
    except TimeoutError:
        remedy = f"{identity} had no answer to a trial call within {_most_seconds:g} s, so its answer was not looked at"
        return [Finding(what="reward function", found="slow", remedy=remedy, is_needed=False)]
    except RewardError as error:
        key = "reward.components" if settings.reward.components else "reward.function"
        raise DataError(
            f"{key} = {identity!r} was called with prompt {prompt.prompt_id} and the response "
            f"{trial_response!r}: {error}; a reward function must return a finite number for whatever a model writes"
        ) from error
    return [Finding(what="reward function", found=f"{identity} gives {reward:g} for a trial response")]
