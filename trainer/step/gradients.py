"""The gradient of one minibatch: forward pass, loss and backward pass of each micro-batch.

Shapes: B samples of a micro-batch, R response positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer.step.algorithms import extreme_tokens, token_losses
from trainer.step.collation import collated_micro_batch
from trainer.step.forward import policy_outputs
from trainer.step.losses.aggregation import aggregate
from trainer.step.losses.penalties import divergences
from trainer.step.losses.policy import Tokens
from trainer.step.losses.values import Values
from trainer.step.off_policy import RatioSums, ratio_sums

if TYPE_CHECKING:
    from torch import Tensor

    from rollog.settings.training import AlgorithmConfig
    from trainer.step.collation import CollatedBatch
    from trainer.step.minibatches import Minibatch
    from trainer.step.old_logprobs import BatchLogprobs, FixedLogprobs
    from trainer.step.ports import StepEngine, TrainingBatch


def accumulate_gradients(
    minibatch: Minibatch,
    batch: TrainingBatch,
    fixed_logprobs: BatchLogprobs,
    engine: StepEngine,
    algorithm: AlgorithmConfig,
) -> tuple[float, RatioSums]:
    """Add the gradient of this rank's micro-batches; returns its share of the minibatch's loss, and statistics."""
    loss, sums = 0.0, RatioSums()
    for positions in minibatch.micro_batches:
        collated = collated_micro_batch(batch, positions, engine)
        fixed = fixed_logprobs.of_micro_batch(minibatch, positions, collated)
        losses_BR, measured = _micro_batch_losses(engine.policy, collated, algorithm, fixed)
        share = aggregate(
            losses_BR,
            collated.mask_BR,
            algorithm.aggregation,
            minibatch.denominators,
            sample_tokens_B=collated.sample_tokens_B,
        )
        engine.backward(share)
        loss += share.item()
        sums += measured
    return loss, sums


def _micro_batch_losses(
    policy: torch.nn.Module, batch: CollatedBatch, algorithm: AlgorithmConfig, fixed: FixedLogprobs
) -> tuple[Tensor, RatioSums]:
    """The loss of every token, and statistics."""
    logprobs_BR, entropies_BR, values_BR = policy_outputs(
        policy,
        batch,
        with_entropy=algorithm.entropy_coefficient > 0,
        with_values=algorithm.needs_values,
    )
    tokens = Tokens(
        logprobs_BR=logprobs_BR,
        behaviour_logprobs_BR=batch.behaviour_logprobs_BR,
        advantages_BR=batch.advantages_BR,
        mask_BR=batch.mask_BR,
    )
    log_ratios_BR = tokens.log_ratios().detach()
    extreme_BR = extreme_tokens(log_ratios_BR, batch.mask_BR, algorithm)
    losses = token_losses(
        tokens,
        algorithm,
        extreme_BR=extreme_BR,
        proximal_logprobs_BR=logprobs_BR.detach() if fixed.old_BR is None else fixed.old_BR,
        reference_logprobs_BR=fixed.reference_BR,
        entropies_BR=entropies_BR,
        values=None if values_BR is None else _values(values_BR, batch),
    )
    return losses.losses_BR, ratio_sums(
        log_ratios_BR,
        batch.mask_BR,
        losses.clipped_BR,
        extreme_BR=extreme_BR,
        lags_BR=batch.lags_BR,
        entropies_BR=entropies_BR,
        reference_divergences_BR=None
        if fixed.reference_BR is None
        else divergences(logprobs_BR.detach(), fixed.reference_BR, batch.mask_BR, "k3"),
        value_losses_BR=losses.value_losses_BR,
    )


def _values(values_BR: Tensor, batch: CollatedBatch) -> Values:
    """Without samples, and so without estimates, there is nothing to learn, but every rank does the same work."""
    nothing_BR = torch.zeros_like(values_BR)
    return Values(
        values_BR=values_BR,
        returns_BR=nothing_BR if batch.returns_BR is None else batch.returns_BR,
        old_values_BR=nothing_BR if batch.values_BR is None else batch.values_BR,
    )
