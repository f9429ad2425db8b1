"""`rollog train`: train one run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rollog.errors import ConfigError
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.engines.plain import PlainEngine
from trainer.loop import Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from threading import Event

    from rollog.broker.ports import Broker
    from rollog.metrics import Metrics
    from trainer.engines.ports import TrainingEngine
    from trainer.settings import TrainerSettings


def run_trainer(
    settings: TrainerSettings,
    broker: Broker,
    metrics: Metrics,
    stop: Event,
    *,
    amendment: Mapping[str, object] | None = None,
) -> None:
    """Train until the run is closed or `stop` is set; `amendment` are settings to change first, by dotted key.

    Raises ProducerFenced when another trainer takes over, BrokerTimeout when an outcome is unknown, DataError,
    WeightsError, LedgerError or EngineError when the run cannot go on, ConfigError under a launcher of several ranks.
    """
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if num_ranks > 1:
        raise ConfigError(
            f"WORLD_SIZE = {num_ranks}: the trainer is one process; start it without a launcher, or unset WORLD_SIZE"
        )
    with Trainer(settings, broker, metrics, training_engine(settings), amendment=amendment or {}) as trainer:
        trainer.run(stop)


def training_engine(settings: TrainerSettings) -> TrainingEngine:
    """The configured engine, not yet started."""
    engine = DeepSpeedEngine if settings.trainer.engine == "deepspeed" else PlainEngine
    return engine(
        settings=settings.step_settings,
        trainer=settings.trainer,
        temperature=settings.sampling_temperature,
        dtype=settings.model.dtype,
    )
