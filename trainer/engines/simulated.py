"""A simulated training engine: nothing is learnt, but everything it was given to train shows in its weights."""

from __future__ import annotations

import time
from hashlib import sha256
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.numpy import load_file

from rollog.kernel.errors import EngineError, WeightsError
from rollog.kernel.versions.files import merged_tensors
from rollog.kernel.versions.tensors import TensorSpec
from trainer.checkpoint_files import hashed_file
from trainer.engines.ports import EngineDescription
from trainer.right_of_way import RightOfWay
from trainer.step.ports import StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rollog.kernel.versions.tensors import TensorSink
    from trainer.checkpoint_files import Digests
    from trainer.step.ports import StepSettings, TrainingBatch

_on_policy = {"first_effective_sample_size": 1.0, "first_divergence": 0.0}
_digest_file = "digest"


class SimulatedTrainingEngine:
    """Training as a hash chain: the weights are a digest of model path and every batch so far, in order.

    For `trainer.engines.ports.TrainingEngine` where learning does not matter: simulations, tests, benchmarks. A step
    takes `step_seconds`, in place of the computation. The policy never moves away from itself, which is what the
    statistics of a step say; settings change nothing.
    """

    def __init__(self, *, step_seconds: float = 0.0) -> None:
        self.way = RightOfWay()
        self._step_seconds = step_seconds
        self._digest: bytes | None = None

    def start(self, model_path: str, weights_path: Path | None = None) -> None:
        """Begin with the digest of the path, or with that of published weights. Raises WeightsError for others."""
        if weights_path is None:
            self._digest = sha256(model_path.encode()).digest()
            return
        try:
            self._digest = merged_tensors(weights_path, load_file)["digest"].tobytes()
        except (OSError, SafetensorError, KeyError) as error:
            raise WeightsError(f"weights {weights_path} hold no digest: {error}") from error

    def train_step(self, batch: TrainingBatch) -> StepResult:
        """Take the batch into the digest."""
        digest = sha256(self._started())
        for sample in batch.samples:
            digest.update(sample.token_ids.tobytes() + repr(sample.advantage).encode())
        for micro_batch in batch.plan:
            digest.update(repr(micro_batch).encode())
        self._digest = digest.digest()
        if self._step_seconds:
            time.sleep(self._step_seconds)
        nothing = (0.0,) * len({micro_batch.minibatch for micro_batch in batch.plan})
        return StepResult(
            losses=nothing, gradient_norms=nothing, learning_rates=nothing, statistics=dict(_on_policy)
        )

    def change_settings(self, settings: StepSettings) -> None:
        """Nothing depends on them."""
        del settings
        self._started()

    def export_weights(self, sink: TensorSink | None) -> None:
        """Hand the digest over as the one tensor."""
        digest = memoryview(self._started())
        if sink is not None:
            spec = TensorSpec("digest", "U8", (len(digest),))
            sink.begin([spec])
            sink.add(spec, digest)

    def sequence_logprobs(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """There is no distribution that a token is drawn from: all are certain."""
        self._started()
        return (0.0,) * (len(token_ids) - 1)

    def save_checkpoint(self, directory: Path) -> Digests:
        """Write the digest."""
        return self.begin_checkpoint(directory)()

    def begin_checkpoint(self, directory: Path) -> Callable[[], Digests]:
        """Keep the digest, to be written later."""
        digest = self._started()

        def write() -> Digests:
            with hashed_file(directory / _digest_file) as file:
                file.write(digest)
            return {_digest_file: file.sha256}

        return write

    def load_checkpoint(self, directory: Path) -> None:
        """Continue from a digest. Raises EngineError."""
        self._started()
        try:
            self._digest = (directory / _digest_file).read_bytes()
        except OSError as error:
            raise EngineError(
                f"{directory} holds no digest of the simulated engine ({error}); remove that directory"
            ) from error

    def describe(self) -> EngineDescription:
        """Nothing that a result depends on."""
        self._started()
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
        """Forget the digest."""
        self._digest = None

    def _started(self) -> bytes:
        if self._digest is None:
            raise EngineError("the training engine is not started: call start() first")
        return self._digest
