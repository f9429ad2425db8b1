"""A training engine that trains nothing, so that the trainer's own work is all that a step takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save

from trainer.engines.ports import EngineDescription, StepResult

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.engines.ports import StepSettings, TrainingBatch


def weights_of(version: int) -> bytes:
    """The weights file of a version."""
    file: bytes = save({"version": np.array([version], dtype=np.int64)})
    return file


class IdleTrainingEngine:
    """Each step changes the weights, which are the number of the version."""

    def __init__(self) -> None:
        self._version = 0

    def start(self, model_path: str, weights_path: Path | None = None) -> None:
        """There is no model."""
        del model_path, weights_path

    def train_step(self, batch: TrainingBatch) -> StepResult:
        """Count the step."""
        del batch
        self._version += 1
        return StepResult(losses=(0.0,), gradient_norms=(0.0,), learning_rates=(0.0,))

    def change_settings(self, settings: StepSettings) -> None:
        """There are none."""
        del settings

    def export_weights(self) -> bytes:
        """The weights of the version reached."""
        return weights_of(self._version)

    def save_checkpoint(self, directory: Path) -> None:
        """Write the version reached."""
        (directory / "version").write_text(str(self._version))

    def load_checkpoint(self, directory: Path) -> None:
        """Go on from a version."""
        self._version = int((directory / "version").read_text())

    def describe(self) -> EngineDescription:
        """Nothing that a result depends on."""
        return EngineDescription(
            name="idle",
            world_size=1,
            zero_stage=0,
            dtype="float32",
            device="cpu",
            model_config_json="{}",
            versions={},
        )

    def close(self) -> None:
        """Nothing is open."""
