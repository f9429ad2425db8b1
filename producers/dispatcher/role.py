"""`rollog dispatch`: load the prompts and dispatch one run."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from producers.dispatcher.dataset import load_prompts
from producers.dispatcher.episode_seeds import episode_prompts
from producers.dispatcher.startup import TakeOver
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ConfigError
from rollog.rules.role_voice import RoleHeartbeats, StartingRole
from schemas import RunRole

if TYPE_CHECKING:
    from threading import Event

    from producers.dispatcher.settings import DispatcherSettings
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.metrics import Metrics
    from rollog.settings.environment import EnvironmentConfig
    from rollog.settings.generation import DataConfig
    from schemas import Prompt


def run_dispatcher(settings: DispatcherSettings, broker: Broker, metrics: Metrics, stop: Event) -> None:
    """Dispatch until the run is closed or `stop` is set.

    Raises DataError for prompts that cannot be used and Superseded when a newer dispatcher takes over.
    """
    dispatcher_id = f"dispatcher-{secrets.token_hex(4)}"
    workers_topic = RunTopics(settings.prefix, settings.run).workers
    starting = StartingRole(RunRole.DISPATCHER, dispatcher_id)
    with RoleHeartbeats(broker, workers_topic, lambda: starting.status) as heartbeats:
        starting.enters("reading the prompts")
        prompts, held_out = load_data(settings.data, settings.environment)
        take_over = TakeOver(
            settings=settings,
            broker=broker,
            metrics=metrics,
            dispatcher_id=dispatcher_id,
            prompts=prompts,
            held_out=held_out,
        )
        starting.enters("reading the log")
        with take_over.start() as dispatcher:
            heartbeats.speak_for(lambda: dispatcher.voice.status)
            dispatcher.run(stop)


def load_data(data: DataConfig, environment: EnvironmentConfig) -> tuple[list[Prompt], list[Prompt]]:
    """Training and held-out prompts, or episodes; held-out is empty where none is configured."""
    if environment.name is not None:
        return episode_prompts(environment)
    if data.train is None:
        raise ConfigError("data.train is not set; name a JSONL or Parquet file, or a dataset")
    prompts = _load(data, data.train, data.train_split)
    return prompts, [] if data.held_out is None else _load(data, data.held_out, data.held_out_split)


def _load(data: DataConfig, source: str, split: str) -> list[Prompt]:
    return load_prompts(
        source,
        split=split,
        prompt_field=data.prompt_field,
        id_field=data.id_field,
        system_prompt=data.system_prompt,
    )
