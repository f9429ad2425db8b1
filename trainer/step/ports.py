"""What a training step consumes and produces, and what it needs of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from schemas import turn_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, device, nn

    from rollog.settings.training import AlgorithmConfig, OptimizerConfig
    from schemas import MicroBatch
    from schemas.arrays import Float32Array, Int32Array, UInt8Array
    from trainer.step.forward import AnyPolicy

Float64Array = np.ndarray[tuple[int], np.dtype[np.float64]]


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
    """What is learnt from one sequence of a sample. Response arrays have one entry per response token.

    `group` is the number of its group in the batch and `reward` what its advantage was computed from, for engines that
    take a divergence off the reward. `lags` counts, per token, the versions from the one that generated it to the one
    that the step begins with; None where that is not known. `turn_rewards` and `turn_advantages` have an entry per turn
    where turns have rewards of their own, and win over those of the whole; `estimates` of a critic win over all.

    Of several sequences of a sample each has `sample`, its number in the batch, `num_sample_tokens`, the trained tokens
    of all of them, and the rewards and advantages of all. `turns` has the number of each token's turn, -1 for context.
    Left out, the sequence is a whole sample, its turns counted by `schemas.turn_numbers`.
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
    sample: int | None = None
    num_sample_tokens: int | None = None
    turns: Int32Array | None = None

    @property
    def turn_of_tokens(self) -> Int32Array:
        """The number of the turn of each response token, in all the sample; of others than trained ones any number."""
        return turn_numbers(self.loss_mask) if self.turns is None else self.turns

    @property
    def num_tokens(self) -> int:
        """Prompt and response together."""
        return len(self.prompt_token_ids) + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingBatch:
    """The samples of one training step in training order, a row per sequence, and how these are cut up."""

    samples: tuple[TrainingSample, ...]
    plan: tuple[MicroBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """What an engine's steps depend on and may change between two of them.

    `num_optimizer_steps` is the length of the learning-rate schedule.
    """

    algorithm: AlgorithmConfig
    optimizer: OptimizerConfig
    num_optimizer_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one training step did: the first three have one entry per optimizer step.

    Norms are those before clipping.
    """

    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    learning_rates: tuple[float, ...]
    statistics: Mapping[str, float] = field(default_factory=dict)


class StepEngine(Protocol):
    """What a training step needs of an engine: this rank's models, and the few verbs in which engines differ.

    All ranks of a job make the same calls in the same order.
    """

    @property
    def policy(self) -> nn.Module:
        """The model in training; called as `trainer.step.forward.policy_outputs` calls it."""
        ...

    @property
    def device(self) -> device:
        """Where the policy computes."""
        ...

    @property
    def rank(self) -> int:
        """Which of the plan's ranks this process is."""
        ...

    @property
    def packing(self) -> bool:
        """Whether samples share rows of a forward pass."""
        ...

    def reference(self) -> AnyPolicy:
        """The model that the run began with, frozen, on the same device; called as the policy is."""
        ...

    def gather(self, numbers: Float64Array) -> list[Float64Array]:
        """These numbers of every rank, in the order of ranks, bit for bit; ranks may have different counts."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's share of a loss. Gradients of all ranks add up, they are not averaged."""
        ...

    def apply_gradients(self, optimizer: OptimizerConfig, learning_rate: float) -> float:
        """Clip what `backward` has added, take one optimizer step under these settings, and forget the gradients.

        Returns the norm of the gradient of all ranks before clipping.
        """
        ...
