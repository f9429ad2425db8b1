"""The run that is fabricated: its configuration, its prompts, and its shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.settings.generation import (
    DataConfig,
    EvaluationConfig,
    RewardConfig,
    RolloutConfig,
    SamplingConfig,
)
from rollog.settings.groups import FreshnessConfig, GroupConfig
from rollog.settings.run import BrokerConfig, ModelConfig, RunConfig, WeightsConfig
from rollog.settings.settings import Settings
from rollog.settings.training import TrainerConfig
from schemas import Prompt

if TYPE_CHECKING:
    from pathlib import Path

prefix = "rollog-growth"
groups_per_batch = 25
group_size = 4
samples_per_step = groups_per_batch * group_size
num_partitions = 4
num_workers = 4
alpha = 1.0
evaluate_every_steps = 50
num_held_out = 4
_num_prompts = 2000
_temperature = 1.0


def growth_settings(name: str, *, seed: int, home: Path, num_steps: int) -> Settings:
    """The configuration of a run that has taken `num_steps` steps and is to take as many again."""
    return Settings(
        run=RunConfig(name=name, prefix=prefix, seed=seed, num_steps=2 * num_steps + 2),
        broker=BrokerConfig(samples_partitions=num_partitions, max_workers=num_workers),
        model=ModelConfig(path="none", max_context_tokens=128),
        groups=GroupConfig(groups_per_batch=groups_per_batch, group_size=group_size),
        freshness=FreshnessConfig(alpha=alpha),
        weights=WeightsConfig(uri=(home / "weights" / name).resolve().as_uri()),
        data=DataConfig(shuffle=False),
        sampling=SamplingConfig(temperature=_temperature, max_tokens=64),
        evaluation=EvaluationConfig(
            every_steps=evaluate_every_steps, num_prompts=num_held_out, sampled=False
        ),
        reward=RewardConfig(function="benchmarks.harness.verdicts:verdict", num_processes=0),
        rollout=RolloutConfig(engine="simulated"),
        trainer=TrainerConfig(num_minibatches=1),
    )


def prompts() -> list[Prompt]:
    """What is trained on; more groups than these begin again with the first."""
    return [a_prompt("train", number) for number in range(_num_prompts)]


def held_out() -> list[Prompt]:
    """What is evaluated."""
    return [a_prompt("held-out", number) for number in range(num_held_out)]


def a_prompt(kind: str, number: int) -> Prompt:
    """A short one."""
    return Prompt(
        prompt_id=f"{kind}-{number}", text=f"Question {number}?", reward_inputs_json=f'{{"answer": {number}}}'
    )
