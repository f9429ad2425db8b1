"""What may differ between simulated runs, and the settings of roles that follow from it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from producers.dispatcher.settings import DispatcherSettings
from rollog.settings.environment import EnvironmentConfig
from rollog.settings.generation import (
    DataConfig,
    DispatchConfig,
    EvaluationConfig,
    RewardConfig,
    SamplingConfig,
)
from rollog.settings.groups import FreshnessConfig, GroupConfig
from rollog.settings.run import BrokerConfig, LastBatch, ModelConfig, RunConfig
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from producers.rollout.session import ReloadMode
    from rollog.kernel.broker.topics import RunTopics

reward_function = "rewards:score"
num_partitions = 2
max_workers = 3
max_tokens = 4
capacity = 2
prefetch_tasks = 1
max_scoring = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What may differ from run to run."""

    alpha: float = 1.0
    groups_per_batch: int = 2
    group_size: int = 2
    redundant_replicas: int = 0
    redundant_groups: int = 0
    seats: int = 1
    num_steps: int = 3
    num_epochs: int | None = None
    num_prompts: int = 5
    last_batch: LastBatch = LastBatch.TRAIN
    action: str = "regenerate"
    patience_seconds: float = 5.0
    replicate: bool = True
    reload: ReloadMode = "keep"
    checkpoint_every_steps: int = 100
    poisoned_prompt: int | None = None
    max_untrained_in_a_row: int = 1000
    late_rewards: bool = False
    """Whether samples come without a reward; `LateScorer` writes them."""
    reward_deadline_seconds: float = 10.0
    num_slots: int = capacity
    """Of each worker."""
    looks_in_flight: int | None = 0
    """How many of a trainer's turns a step stays in flight; None: nothing is published beside training."""
    snapshot_every_seconds: float | None = None
    """How often roles keep their state on disk, at every turn for 0; None keeps none."""
    filters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def groups(self) -> GroupConfig:
        return GroupConfig(
            groups_per_batch=self.groups_per_batch,
            group_size=self.group_size,
            redundant_replicas=self.redundant_replicas,
            redundant_groups=self.redundant_groups,
            max_untrained_in_a_row=self.max_untrained_in_a_row,
            **self.filters,
        )

    @property
    def freshness(self) -> FreshnessConfig:
        values: dict[str, Any] = {"action": self.action, "patience_seconds": self.patience_seconds}
        return FreshnessConfig(alpha=self.alpha, **values)

    @property
    def run(self) -> RunConfig:
        return RunConfig(num_steps=self.num_steps, last_batch=self.last_batch, close_timeout_seconds=60.0)

    @property
    def broker(self) -> BrokerConfig:
        return BrokerConfig(samples_partitions=num_partitions, max_workers=max_workers)

    @property
    def manifest_json(self) -> str:
        """What the manifest says of it."""
        late = {"reward": {"late": True}} if self.late_rewards else {}
        groups = self.groups.model_dump()
        return json.dumps({"run": {"seed": 0}, "groups": groups, "sampling": {"temperature": 1.0}, **late})

    def dispatcher_settings(self, topics: RunTopics, home: Path) -> DispatcherSettings:
        """Those of every dispatcher of a run with these topics."""
        return DispatcherSettings(
            run=topics.run,
            prefix=topics.prefix,
            run_config=self.run,
            broker=self.broker,
            groups=self.groups,
            freshness=self.freshness,
            data=DataConfig(num_epochs=self.num_epochs),
            sampling=SamplingConfig(max_tokens=max_tokens),
            evaluation=EvaluationConfig(every_steps=0, sampled=False),
            reward=RewardConfig(function=reward_function, max_in_flight=max_scoring, late=self.late_rewards),
            environment=EnvironmentConfig(seats=self.seats),
            dispatch=DispatchConfig(prefetch_tasks=prefetch_tasks, replicate=self.replicate),
            snapshot=None if self.snapshot_every_seconds is None else home / "dispatcher.json",
            snapshot_every_seconds=self.snapshot_every_seconds or 0.0,
        )

    def trainer_settings(self, topics: RunTopics, home: Path, manifest_json: str | None) -> TrainerSettings:
        """Those of every trainer; `manifest_json` stands in place of the plan's own manifest."""
        return TrainerSettings(
            run=topics.run,
            prefix=topics.prefix,
            seed=0,
            home=home,
            run_config=self.run,
            broker=self.broker,
            model=ModelConfig(path="simulated"),
            groups=self.groups,
            freshness=self.freshness,
            sampling_temperature=1.0,
            algorithm=AlgorithmConfig(),
            optimizer=OptimizerConfig(),
            trainer=TrainerConfig(
                num_minibatches=1,
                verdicts_interval_seconds=0.0,
                checkpoint_every_steps=self.checkpoint_every_steps,
                publish_beside_training=self.looks_in_flight is not None,
            ),
            weights_uri=f"memory://{topics.run}",
            reward_deadline_seconds=self.reward_deadline_seconds if self.late_rewards else None,
            snapshot_every_seconds=float("inf")
            if self.snapshot_every_seconds is None
            else self.snapshot_every_seconds,
            manifest_json=manifest_json or self.manifest_json,
        )
