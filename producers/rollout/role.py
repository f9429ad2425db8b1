"""The rollout worker as a role of the command line: parts made from settings, one asyncio loop."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from producers.engines.choice import make_engine
from producers.environments.choice import environment_limits, environment_spec
from producers.environments.pool import EnvironmentPool
from producers.rewards.choice import make_rewards
from producers.rewards.episodes import EpisodeRewards
from producers.rewards.shuffled import ShuffledRewards
from producers.rollout.agent_parts import agents_of
from producers.rollout.episodes import Episodes, EpisodeSettings
from producers.rollout.prompts import ByteTokenizer, PromptRenderer, load_tokenizer
from producers.rollout.speech import speech_of
from producers.rollout.worker import WorkerParts, open_worker
from rollog.kernel.errors import ConfigError
from rollog.kernel.logs import get_logger
from rollog.kernel.shared_memory import WorkerPresence
from rollog.kernel.versions.lane import Lane
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    import threading

    from producers.rewards.ports import Rewards
    from producers.rollout.settings import RolloutSettings
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.metrics import Metrics

_log = get_logger("rollout")


def run_rollout(settings: RolloutSettings, broker: Broker, metrics: Metrics, stop: threading.Event) -> None:
    """Work as one rollout worker until the run is closed, the dispatcher says Stop, or `stop` is set."""
    worker_id = f"{settings.name}-{secrets.token_hex(4)}"
    _log.info("starting", worker=worker_id, engine=settings.rollout.engine, run=settings.run)
    parts = make_parts(settings, broker, metrics, worker_id)
    with nullcontext() if settings.shared is None else WorkerPresence(settings.shared):
        try:
            asyncio.run(_run(settings, parts, worker_id, stop))
        except BaseExceptionGroup as group:
            raise _first_cause(group) from group


def make_parts(settings: RolloutSettings, broker: Broker, metrics: Metrics, worker_id: str) -> WorkerParts:
    """Engine, tokenizer, rewards and weights store as configured; nothing is started."""
    rewards = _rewards(settings)
    tokenizer = _tokenizer(settings)
    shuffled = settings.reward.control == "shuffled"
    return WorkerParts(
        broker=broker,
        engine=make_engine(
            settings.model,
            settings.rollout,
            settings.seed,
            settings.home,
            adapter_rank=settings.adapter_rank,
        ),
        renderer=_renderer(settings, tokenizer),
        training_rewards=ShuffledRewards(rewards, seed=f"{settings.seed}/{worker_id}")
        if shuffled
        else rewards,
        evaluation_rewards=rewards,
        episodes=_episodes(settings, tokenizer),
        agents=agents_of(settings.agent, settings.model, tokenizer) if settings.agent.is_given else None,
        store=WeightsStore(
            settings.weights_uri,
            wait_seconds=settings.weights_wait_seconds,
            lane=None if settings.shared is None else Lane(settings.shared),
        ),
        metrics=metrics,
    )


def _rewards(settings: RolloutSettings) -> Rewards:
    is_scored_outside = settings.reward.late and settings.reward.identity is None
    brings_rewards = settings.environment.name is not None or settings.agent.reward == "agent"
    if brings_rewards or is_scored_outside:
        return EpisodeRewards()
    if settings.reward.identity is None:
        raise ConfigError("reward.function is missing; name it as module:function, or a ready reward")
    return make_rewards(settings.reward.function, settings.reward)


def _episodes(settings: RolloutSettings, tokenizer: Any) -> Episodes | None:
    config = settings.environment
    if config.name is None:
        return None
    return Episodes(
        pool=EnvironmentPool(environment_limits(config)),
        settings=EpisodeSettings(
            environment=environment_spec(config),
            max_turns=config.max_turns,
            num_seats=config.seats,
            with_turn_rewards=config.turn_rewards,
        ),
        speech=speech_of(
            tokenizer,
            config.format,
            system_prompt=config.system_prompt,
            chat_template_kwargs=settings.model.chat_template_kwargs,
        ),
    )


async def _run(settings: RolloutSettings, parts: WorkerParts, worker_id: str, stop: threading.Event) -> None:
    async with open_worker(settings, parts, worker_id=worker_id, stop=stop) as worker:
        await worker.run()


def _tokenizer(settings: RolloutSettings) -> Any:
    name = settings.model.tokenizer or settings.model.path
    return ByteTokenizer() if name is None else load_tokenizer(name)


def _renderer(settings: RolloutSettings, tokenizer: Any) -> PromptRenderer:
    model = settings.model
    return PromptRenderer(
        tokenizer,
        max_context_tokens=model.max_context_tokens,
        chat_template_kwargs=model.chat_template_kwargs,
    )


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended the loop, out of the groups it comes wrapped in."""
    cause: BaseException = group
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause
