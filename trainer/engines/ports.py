"""What the trainer needs of a training engine, and nothing more.

An engine holds the policy, its optimizer and its schedule. The same batches from the same start give the same
weights, bit for bit, on the same kind of machine; a step draws no random numbers. Every engine passes one
contract suite. All methods are called from one thread, on all ranks alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rollog.settings.training import AlgorithmConfig, OptimizerConfig
    from schemas import MicroBatch
    from schemas.arrays import Float32Array, Int32Array, UInt8Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenEstimates:
    """What a critic says of a response, per token, 0 where the loss mask is 0.

    `values` are what was expected before the token, `returns` what should have been, `advantages` what is learnt from.
    """

    values: Float32Array
    returns: Float32Array
    advantages: Float32Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """What is learnt from one sample. Response arrays have one entry per response token.

    `group` is the number of its group in the batch and `reward` what its advantage was computed from, for engines that
    take a divergence off the reward. `lags` counts, per token, the versions from the one that generated it to the one
    that the step begins with; None where that is not known. `turn_rewards` and `turn_advantages` have an entry per turn
    (`schemas.turn_numbers`) where turns have rewards of their own, and win over those of the whole; `estimates` of a
    critic win over all.
    """

    prompt_token_ids: Int32Array
    token_ids: Int32Array
    behaviour_logprobs: Float32Array
    loss_mask: UInt8Array
    advantage: float
    group: int = 0
    reward: float = 0.0
    lags: Int32Array | None = None
    turn_rewards: tuple[float, ...] = ()
    turn_advantages: tuple[float, ...] = ()
    estimates: TokenEstimates | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and response together."""
        return len(self.prompt_token_ids) + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingBatch:
    """The samples of one training step in training order, and how they are cut up."""

    samples: tuple[TrainingSample, ...]
    plan: tuple[MicroBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one training step did: the first three have one entry per optimizer step.

    Norms are those before clipping.
    """

    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    learning_rates: tuple[float, ...]
    statistics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """What an engine's steps depend on and may change between two of them.

    `num_optimizer_steps` is the length of the learning-rate schedule.
    """

    algorithm: AlgorithmConfig
    optimizer: OptimizerConfig
    num_optimizer_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescription:
    """What genesis says about the engine: whoever has the same can reproduce the run."""

    name: str
    world_size: int
    zero_stage: int
    dtype: str
    device: str
    model_config_json: str
    versions: Mapping[str, str]


class TrainingEngine(Protocol):
    """Trains a causal language model. Failures of the engine are EngineError."""

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

    def export_weights(self) -> bytes:
        """The weights as a safetensors file. Equal weights give equal bytes; tied tensors appear once."""
        ...

    def save_checkpoint(self, directory: Path) -> None:
        """Write weights, optimizer and schedule into an existing empty directory."""
        ...

    def load_checkpoint(self, directory: Path) -> None:
        """Go on exactly where `save_checkpoint` was called. Raises EngineError."""
        ...

    def describe(self) -> EngineDescription:
        """What the started engine is."""
        ...

    def close(self) -> None:
        """Give everything back; calling it again does nothing."""
        ...
