"""Whether the environment can be made, has the seats that are said, begins, and its first texts fit the context."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from producers.environments.choice import environment_limits, environment_spec
from producers.environments.pool import EnvironmentPool
from producers.rollout.speech import speech_of
from rollog.kernel.errors import DataError, EnvironmentFailed
from rollog.run.finding import Finding

if TYPE_CHECKING:
    from rollog.settings.environment import EnvironmentConfig
    from rollog.settings.settings import Settings

_most_shown = 60


def first_text(settings: Settings, tokenizer: Any) -> list[Finding]:
    """One episode begun in a process as a worker has them; the tokenizer is None for a model that is made later.

    Raises DataError.
    """
    config = settings.environment
    try:
        texts = asyncio.run(_opening(config))
    except EnvironmentFailed as error:
        raise DataError(f"environment.name = {config.name!r} does not begin with seed 0: {error}") from error
    text = max(texts, key=len)
    shown = text if len(text) <= _most_shown else f"{text[:_most_shown]}..."
    found = f"{config.name} begins with {shown!r}"
    if tokenizer is None:
        return [Finding(what="environment", found=found), *_places(settings)]
    speech = speech_of(
        tokenizer,
        config.format,
        system_prompt=config.system_prompt,
        chat_template_kwargs=settings.model.chat_template_kwargs,
    )
    num_tokens = max(len(speech().opening(text)) for text in texts)
    room = settings.model.max_context_tokens
    if num_tokens + settings.sampling.max_tokens > room:
        raise DataError(
            f"environment.name = {config.name!r} begins with {num_tokens} tokens, and sampling.max_tokens = "
            f"{settings.sampling.max_tokens} of a turn do not fit behind them in model.max_context_tokens = {room}; "
            "raise the last or lower the second"
        )
    return [Finding(what="environment", found=f"{found}, {num_tokens} tokens"), *_places(settings)]


def _places(settings: Settings) -> list[Finding]:
    """A warning where slots of the engine would wait for a place among the environments."""
    config, capacity = settings.environment, settings.rollout.capacity
    places = config.num_processes * config.episodes_per_process
    if places >= capacity:
        return []
    remedy = (
        f"environment.num_processes x episodes_per_process = {places} places for rollout.capacity = {capacity} "
        "episodes at once, so the others wait with their time running: raise one of the first or lower the last"
    )
    return [Finding(what="environment", found=f"{places} places", remedy=remedy, is_needed=False)]


async def _opening(config: EnvironmentConfig) -> list[str]:
    """What those see who act first. Raises EnvironmentFailed, and DataError for another number of seats."""
    limits = environment_limits(config.model_copy(update={"num_processes": 1}))
    pool = EnvironmentPool(limits)
    try:
        episode = await pool.open(environment_spec(config), 0)
        observation = await episode.reset()
        if episode.declaration.num_seats != config.seats:
            raise DataError(
                f"environment.name = {config.name!r} has {episode.declaration.num_seats} seat(s), and "
                f"environment.seats = {config.seats}; make them equal"
            )
        return [observation.texts[seat] for seat in observation.to_act]
    finally:
        await pool.close()
