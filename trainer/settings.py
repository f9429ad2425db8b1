"""What a trainer needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError
from trainer.step.ports import StepSettings

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.settings.groups import FreshnessConfig, GroupConfig
    from rollog.settings.run import BrokerConfig, ModelConfig, RunConfig
    from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """The sections of the configuration that the trainer reads; `run` is the resolved name of the run.

    `home` is the state directory, `manifest_json` the resolved configuration as it stands in the manifest.
    """

    run: str
    prefix: str
    seed: int
    home: Path
    run_config: RunConfig
    broker: BrokerConfig
    model: ModelConfig
    groups: GroupConfig
    freshness: FreshnessConfig
    sampling_temperature: float
    algorithm: AlgorithmConfig
    optimizer: OptimizerConfig
    trainer: TrainerConfig
    weights_uri: str
    manifest_json: str

    @property
    def model_path(self) -> str:
        """Where the model's structure is. Raises ConfigError where it is not set."""
        if self.model.path is None:
            raise ConfigError(
                "model.path is not set; name a directory or a Hugging Face causal language model"
            )
        return self.model.path

    @property
    def step_settings(self) -> StepSettings:
        """What the training engine needs of them for a step."""
        return StepSettings(
            algorithm=self.algorithm,
            optimizer=self.optimizer,
            num_optimizer_steps=self.run_config.num_steps
            * self.trainer.num_epochs
            * self.trainer.num_minibatches,
        )

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints of this run are kept."""
        return self.home / "runs" / self.run / "checkpoints"

    @property
    def downloads(self) -> Path:
        """Where weights from a remote store are put."""
        return self.home / "runs" / self.run / "weights"
