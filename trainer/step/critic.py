"""The critic: advantages of single tokens, from the values that the policy's own value head gives.

Before the first minibatch of a step the policy, as it is then, says of every trained token what it expects to come.
`trainer.step.advantages.gae_advantages` compares that with what came; the values and what they should have been are
what the value head is trained with, in the same minibatches as the policy (`trainer.step.losses.values`).

Of a sample with several sequences each goes from its own first token to its last, where nothing is to come but what
turns after it have (`trainer.step.sequences.rewards_of_tokens`).

Each rank computes the values of the samples that it trains in the first pass, and ranks exchange them: every rank then
has those of the samples that it trains in a later pass, and sums over the whole batch, in the order of the batch, that
do not depend on how it is shared out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollog.kernel.errors import EngineError
from schemas import float32_array
from trainer.step.advantages import gae_advantages, std_epsilon
from trainer.step.collation import first_pass_micro_batches
from trainer.step.forward import frozen_values
from trainer.step.gathering import gather_by_position
from trainer.step.ports import TokenEstimates
from trainer.step.sequences import rewards_of_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollog.settings.training import AlgorithmConfig
    from schemas.arrays import Float32Array
    from trainer.step.ports import Float64Array, StepEngine, TrainingBatch, TrainingSample


class ValueSums(NamedTuple):
    """Sums over the trained tokens of one sequence."""

    num_tokens: float
    advantages: float
    returns: float
    returns_squared: float
    values: float
    advantages_squared: float

    def __add__(self, other: ValueSums) -> ValueSums:  # type: ignore[override]
        return ValueSums(*(here + there for here, there in zip(self, other, strict=True)))


def with_token_advantages(
    batch: TrainingBatch, engine: StepEngine, algorithm: AlgorithmConfig
) -> tuple[TrainingBatch, dict[str, float]]:
    """The batch with estimates of the critic for the samples of this rank, where `algorithm` has one; else as it is.

    Beside it the figures of `_statistics`, over all ranks.

    Raises:
        EngineError: a value of any rank is not finite, or the policy has no value head.
    """
    if not algorithm.needs_values:
        return batch, {}
    values_of = gather_by_position(engine, _own_values(batch, engine))
    raw = {
        position: gae_advantages(
            values,
            _rewards(batch.samples[position]),
            discount=algorithm.discount,
            gae_lambda=algorithm.gae_lambda,
        )
        for position, values in sorted(values_of.items())
    }
    sums = _in_order({position: _sums(values_of[position], raw[position]) for position in raw})
    if not np.isfinite(sums).all():
        raise EngineError(
            "the value head gives values that are no numbers; nothing was published: lower optimizer.learning_rate "
            "or algorithm.value_coefficient"
        )
    normalized = _normalized(raw, sums) if algorithm.normalize_std else raw
    samples = list(batch.samples)
    for position in _positions_of_rank(batch, engine.rank):
        sample, values = samples[position], values_of[position]
        estimates = TokenEstimates(
            values=_spread(sample, values),
            returns=_spread(sample, values + raw[position]),
            advantages=_spread(sample, normalized[position]),
        )
        samples[position] = replace(sample, estimates=estimates)
    return replace(batch, samples=tuple(samples)), _statistics(sums)


def _positions_of_rank(batch: TrainingBatch, rank: int) -> set[int]:
    """What this rank trains in any pass."""
    return {position for planned in batch.plan if planned.rank == rank for position in planned.positions}


def _own_values(batch: TrainingBatch, engine: StepEngine) -> dict[int, Float64Array]:
    """The values of the trained tokens of each sample of this rank, by its position in the batch."""
    values_of: dict[int, Float64Array] = {}
    for positions, collated in first_pass_micro_batches(batch, engine):
        values_BR = frozen_values(engine.policy, collated).cpu().double().numpy()
        mask_BR = collated.mask_BR.cpu().numpy()
        for row, position in enumerate(positions):
            values_of[position] = values_BR[row][mask_BR[row]]
    return values_of


def _rewards(sample: TrainingSample) -> Float64Array:
    """What comes with each trained token: the reward with the last of all, or that of each turn with its last."""
    trained = sample.turn_of_tokens[sample.loss_mask != 0]
    if sample.turn_rewards:
        return rewards_of_tokens(trained, sample.turn_rewards)
    rewards = np.zeros(trained.size)
    rewards[-1:] = sample.reward
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


def _normalized(advantages: Mapping[int, Float64Array], sums: ValueSums) -> dict[int, Float64Array]:
    """With the mean over all tokens of the batch taken off, and divided by their deviation."""
    mean = sums.advantages / max(sums.num_tokens, 1.0)
    centred = {position: of_sample - mean for position, of_sample in advantages.items()}
    squared = sum(float(np.square(of_sample).sum()) for of_sample in centred.values())
    variance = squared / max(sums.num_tokens - 1.0, 1.0)
    return {
        position: of_sample / (np.sqrt(variance) + std_epsilon) for position, of_sample in centred.items()
    }


def _in_order(sums_of: Mapping[int, ValueSums]) -> ValueSums:
    return sum(
        (sums_of[position] for position in sorted(sums_of)),
        start=ValueSums(*(0.0 for _ in ValueSums._fields)),
    )


def _statistics(sums: ValueSums) -> dict[str, float]:
    """How good the values were.

    `value_mean` and `return_mean` are means over trained tokens; `explained_variance` is 1 - Var(R - V) / Var(R), 0 for
    values that are all equal, left out where the returns are.
    """
    if sums.num_tokens == 0:
        return {}
    return_mean = sums.returns / sums.num_tokens
    variance = sums.returns_squared / sums.num_tokens - return_mean**2
    means = {"value_mean": sums.values / sums.num_tokens, "return_mean": return_mean}
    if variance < std_epsilon:
        return means
    unexplained = sums.advantages_squared / sums.num_tokens - (sums.advantages / sums.num_tokens) ** 2
    return means | {"explained_variance": 1.0 - unexplained / variance}


def _spread(sample: TrainingSample, values: Float64Array) -> Float32Array:
    """Values of trained tokens at their places, 0 elsewhere."""
    spread = np.zeros(len(sample.token_ids))
    spread[sample.loss_mask != 0] = values
    return float32_array(spread)
