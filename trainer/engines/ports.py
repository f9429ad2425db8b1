"""What the trainer needs of a training engine, and nothing more.

An engine holds the policy, its optimizer and its schedule. The same batches from the same start give the same
weights, bit for bit, on the same kind of machine; a step draws no random numbers. Every engine passes one
contract suite. All methods are called from one thread, on all ranks alike; what `begin_checkpoint` returns is called
from another one, beside them, and takes part in no collective operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rollog.kernel.versions.adapter import Adapter
    from rollog.kernel.versions.tensors import TensorSink
    from trainer.checkpoint_files import Digests
    from trainer.right_of_way import RightOfWay
    from trainer.step.ports import StepResult, StepSettings, TrainingBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescription:
    """What genesis says about the engine: whoever has the same can reproduce the run.

    `adapter` is what versions say of low-rank adapters, None where there are none, or they are merged.
    """

    name: str
    world_size: int
    zero_stage: int
    dtype: str
    device: str
    model_config_json: str
    versions: Mapping[str, str]
    adapter: Adapter | None = None


class TrainingEngine(Protocol):
    """Trains a causal language model. Failures of the engine are EngineError."""

    @property
    def way(self) -> RightOfWay:
        """Copies of weights and state have it, and what this process writes of checkpoints gives way.

        The publisher gives way to copies, too, and who waits for a version takes it. Where nothing is copied, as in
        simulations, nobody does.
        """
        ...

    def start(self, model_path: str, weights_path: Path | None = None) -> None:
        """Build the model from `model_path`, with the weights of `weights_path` where given.

        Raises DataError when the model cannot be loaded, WeightsError when the weights do not fit it.
        """
        ...

    def train_step(self, batch: TrainingBatch) -> StepResult:
        """Run the plan: one optimizer step per minibatch, its micro-batches accumulated."""
        ...

    def change_settings(self, settings: StepSettings) -> None:
        """Train the next steps under these settings, with weights, optimizer state and step count as they are.

        What a checkpoint holds of the optimizer's settings gives way, too.
        """
        ...

    def export_weights(self, sink: TensorSink | None) -> None:
        """Hand the weights to `sink`, one tensor after another; of tied tensors only the first.

        Equal weights give equal names and bytes, in one order. Ranks without a sink only take part in gathering.
        """
        ...

    def sequence_logprobs(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Log pi of each token after the first, in nats, at temperature 1, under the weights as they are."""
        ...

    def save_checkpoint(self, directory: Path) -> Digests:
        """Write weights, optimizer and schedule into an existing empty directory; returns the digests of the files.

        The files are durable then. Each rank takes the digests of those that it writes.
        """
        ...

    def begin_checkpoint(self, directory: Path) -> Callable[[], Digests]:
        """Do so in two parts: copy the state, so that the engine may go on; what is returned writes the copy, once.

        Call it when what was begun before is written. Where memory is short, the files are written at once.
        """
        ...

    def load_checkpoint(self, directory: Path) -> None:
        """Continue exactly where the checkpoint was saved or begun.

        The engine is newly started, or its last step failed: nothing of that step is left. Raises EngineError.
        """
        ...

    def describe(self) -> EngineDescription:
        """What the started engine is."""
        ...

    def close(self) -> None:
        """Release all resources. Idempotent."""
        ...
