"""A training engine that only hashes: nothing is learnt, and everything it was given shows in its weights."""

from __future__ import annotations

import time
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load, save

from trainer.engines.ports import EngineDescription
from trainer.step.ports import StepResult

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.step.ports import StepSettings, TrainingBatch

_on_policy = {"first_effective_sample_size": 1.0, "first_divergence": 0.0}


class SimulatedTrainingEngine:
    """Training as a hash chain: the weights are a digest of every batch so far, in order.

    A step takes `step_seconds`, in place of the computation. The policy never moves away from itself, which is what
    the statistics of a step say.
    """

    def __init__(self, *, step_seconds: float = 0.0) -> None:
        self._step_seconds = step_seconds
        self._digest = b""

    def start(self, model_path: str, weights_path: Path | None = None) -> None:
        """Begin with the digest of the path, or with that of a weights file."""
        self._digest = sha256(model_path.encode()).digest()
        if weights_path is not None:
            self._digest = load(weights_path.read_bytes())["digest"].tobytes()

    def train_step(self, batch: TrainingBatch) -> StepResult:
        """Take the batch into the digest."""
        digest = sha256(self._digest)
        for sample in batch.samples:
            digest.update(sample.token_ids.tobytes() + repr(sample.advantage).encode())
        for part in batch.plan:
            digest.update(repr(part).encode())
        self._digest = digest.digest()
        if self._step_seconds:
            time.sleep(self._step_seconds)
        return StepResult(
            losses=(0.0,), gradient_norms=(0.0,), learning_rates=(0.0,), statistics=dict(_on_policy)
        )

    def change_settings(self, settings: StepSettings) -> None:
        """There are none."""
        del settings

    def export_weights(self) -> bytes:
        """The digest as a safetensors file."""
        file: bytes = save({"digest": np.frombuffer(self._digest, dtype=np.uint8)})
        return file

    def save_checkpoint(self, directory: Path) -> None:
        """Write the digest."""
        (directory / "digest").write_bytes(self._digest)

    def load_checkpoint(self, directory: Path) -> None:
        """Go on from a digest."""
        self._digest = (directory / "digest").read_bytes()

    def describe(self) -> EngineDescription:
        """Nothing that a result depends on."""
        return EngineDescription(
            name="hash",
            world_size=1,
            zero_stage=0,
            dtype="float32",
            device="cpu",
            model_config_json="{}",
            versions={},
        )

    def close(self) -> None:
        """Nothing is open."""
