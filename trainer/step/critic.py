"""The critic: advantages of single tokens, from the values that the policy's own value head gives.

Before the first minibatch of a step the policy, as it is then, says of every trained token what it expects to come.
`trainer.advantages.gae_advantages` compares that with what came; the values and what they should have been are what the
value head is trained with, in the same minibatches as the policy (`trainer.losses.values`).

Each rank asks for the samples that it trains. Sums over the batch are those of all ranks, in the order of the batch:
they do not depend on how it is shared out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np

from rollog.kernel.errors import EngineError
from schemas import float32_array, turn_numbers
from trainer.engines.ports import TokenEstimates
from trainer.model.policy import frozen_values
from trainer.step.advantages import gae_advantages, std_epsilon
from trainer.step.collation import collated_once

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from rollog.settings.training import AlgorithmConfig
    from schemas.arrays import Float32Array
    from trainer.engines.ports import TrainingBatch, TrainingSample

    Float64Array = np.ndarray[tuple[int], np.dtype[np.float64]]

T = TypeVar("T")


class Gather(Protocol):
    """Puts the entries of all ranks together."""

    def __call__(self, found: dict[int, T], /) -> dict[int, T]:
        """All entries, by the position of their sample in the batch."""
        ...


class ValueSums(NamedTuple):
    """Sums over the trained tokens of one sample."""

    num_tokens: float
    advantages: float
    returns: float
    returns_squared: float
    values: float
    advantages_squared: float

    def __add__(self, other: ValueSums) -> ValueSums:  # type: ignore[override]
        return ValueSums(*(here + there for here, there in zip(self, other, strict=True)))


def with_estimates(
    policy: torch.nn.Module,
    batch: TrainingBatch,
    algorithm: AlgorithmConfig,
    *,
    rank: int,
    device: torch.device,
    gather: Gather,
    packing: bool = False,
) -> tuple[TrainingBatch, dict[str, float]]:
    """The batch with estimates for the samples of this rank, and how good the values were over all ranks.

    `value_mean` and `return_mean` are means over trained tokens; `explained_variance` is 1 - Var(R - V) / Var(R), 0 for
    values that are all equal, left out where the returns are.

    Args:
        policy: with a value head, as it is before the step.
        batch: of all ranks.
        algorithm: one that `needs_values`.
        rank: whose samples are asked for.
        device: where the policy is.
        gather: puts the entries of all ranks together.
        packing: whether samples share rows of a forward pass.

    Raises:
        EngineError: a value of any rank is not finite.
    """
    values_of = _values(policy, batch, rank, device=device, packing=packing)
    raw = {
        position: gae_advantages(
            values,
            _rewards(batch.samples[position]),
            discount=algorithm.discount,
            gae_lambda=algorithm.gae_lambda,
        )
        for position, values in values_of.items()
    }
    sums = _in_order(gather({position: _sums(values_of[position], raw[position]) for position in raw}))
    if not np.isfinite(sums).all():
        raise EngineError(
            "the value head gives values that are no numbers; nothing was published: lower optimizer.learning_rate "
            "or algorithm.value_coefficient"
        )
    learnt = _normalized(raw, sums, gather) if algorithm.normalize_std else raw
    samples = list(batch.samples)
    for position, values in values_of.items():
        sample = samples[position]
        estimates = TokenEstimates(
            values=_spread(sample, values),
            returns=_spread(sample, values + raw[position]),
            advantages=_spread(sample, learnt[position]),
        )
        samples[position] = replace(sample, estimates=estimates)
    return replace(batch, samples=tuple(samples)), _statistics(sums)


def _values(
    policy: torch.nn.Module, batch: TrainingBatch, rank: int, *, device: torch.device, packing: bool
) -> dict[int, Float64Array]:
    """The values of the trained tokens of each sample of this rank, by its position in the batch."""
    found: dict[int, Float64Array] = {}
    for positions, collated in collated_once(batch, rank, device=device, packing=packing):
        values_BR = frozen_values(policy, collated).cpu().double().numpy()
        mask_BR = collated.mask_BR.cpu().numpy()
        for row, position in enumerate(positions):
            found[position] = values_BR[row][mask_BR[row]]
    return found


def _rewards(sample: TrainingSample) -> Float64Array:
    """What comes with each trained token: the reward with the last of all, or that of each turn with its last."""
    turns = turn_numbers(sample.loss_mask)
    trained = turns[turns >= 0]
    rewards = np.zeros(trained.size)
    if sample.turn_rewards:
        rewards[np.searchsorted(trained, np.arange(len(sample.turn_rewards)), side="right") - 1] = (
            sample.turn_rewards
        )
    elif trained.size:
        rewards[-1] = sample.reward
    return rewards


def _sums(values: Float64Array, advantages: Float64Array) -> ValueSums:
    returns = values + advantages
    return ValueSums(
        num_tokens=float(values.size),
        advantages=float(advantages.sum()),
        returns=float(returns.sum()),
        returns_squared=float(np.square(returns).sum()),
        values=float(values.sum()),
        advantages_squared=float(np.square(advantages).sum()),
    )


def _normalized(
    advantages: Mapping[int, Float64Array], sums: ValueSums, gather: Gather
) -> dict[int, Float64Array]:
    """With the mean over all tokens of the batch taken off, and divided by their deviation."""
    mean = sums.advantages / max(sums.num_tokens, 1.0)
    centred = {position: each - mean for position, each in advantages.items()}
    squared = gather({position: float(np.square(each).sum()) for position, each in centred.items()})
    variance = sum(squared[position] for position in sorted(squared)) / max(sums.num_tokens - 1.0, 1.0)
    return {position: each / (np.sqrt(variance) + std_epsilon) for position, each in centred.items()}


def _in_order(sums_of: Mapping[int, ValueSums]) -> ValueSums:
    return sum(
        (sums_of[position] for position in sorted(sums_of)),
        start=ValueSums(*(0.0 for _ in ValueSums._fields)),
    )


def _statistics(sums: ValueSums) -> dict[str, float]:
    if sums.num_tokens == 0:
        return {}
    return_mean = sums.returns / sums.num_tokens
    variance = sums.returns_squared / sums.num_tokens - return_mean**2
    means = {"value_mean": sums.values / sums.num_tokens, "return_mean": return_mean}
    if variance < std_epsilon:
        return means
    left = sums.advantages_squared / sums.num_tokens - (sums.advantages / sums.num_tokens) ** 2
    return means | {"explained_variance": 1.0 - left / variance}


def _spread(sample: TrainingSample, values: Float64Array) -> Float32Array:
    """Values of trained tokens at their places, 0 elsewhere."""
    spread = np.zeros(len(sample.token_ids))
    spread[sample.loss_mask != 0] = values
    return float32_array(spread)
