"""The training engines that the contract suites hold against each other, all under one optimizer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from support.small_training import NaiveEngine
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.engines.plain import PlainEngine
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.step.ports import StepSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.engines.ports import TrainingEngine

temperature = 0.8
step_settings = StepSettings(
    algorithm=AlgorithmConfig(),
    optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=2, weight_decay=0.1, max_gradient_norm=0.3),
    num_optimizer_steps=100,
)


def naive() -> TrainingEngine:
    """The reference of the tests."""
    return NaiveEngine(
        algorithm=step_settings.algorithm,
        optimizer=step_settings.optimizer,
        temperature=temperature,
        num_optimizer_steps=step_settings.num_optimizer_steps,
    )


def deepspeed(zero_stage: int, dtype: str = "float32", *, packing: bool = False) -> DeepSpeedEngine:
    return DeepSpeedEngine(
        settings=step_settings,
        trainer=TrainerConfig(zero_stage=zero_stage, num_minibatches=2, packing=packing),
        temperature=temperature,
        dtype=dtype,
    )


def plain(dtype: str = "float32", *, packing: bool = False) -> PlainEngine:
    return PlainEngine(
        settings=step_settings,
        trainer=TrainerConfig(num_minibatches=2, packing=packing),
        temperature=temperature,
        dtype=dtype,
    )


deepspeed_makers: dict[str, Callable[[], TrainingEngine]] = {
    f"zero-{stage}": partial(deepspeed, stage) for stage in range(4)
}
learning_makers: dict[str, Callable[[], TrainingEngine]] = {"plain": plain} | deepspeed_makers
every_maker: dict[str, Callable[[], TrainingEngine]] = {
    "simulated": SimulatedTrainingEngine
} | learning_makers
