"""One minibatch's gradient, independent of the engine that applies it.

Shapes: B samples of a micro-batch, R response positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainer.collation import collate
from trainer.losses import Denominators, aggregate, clipped_policy_losses, log_ratios
from trainer.off_policy import RatioSums, ratio_sums
from trainer.policy import policy_logprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    from trainer.config import AlgorithmConfig
    from trainer.engines.ports import TrainingBatch, TrainingSample

_off_policy = ("effective_sample_size", "divergence")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Minibatch:
    """One optimizer step's work: all its samples, and the micro-batches of one rank."""

    micro_batches: tuple[tuple[TrainingSample, ...], ...]
    denominators: Denominators


def minibatches(batch: TrainingBatch, rank: int) -> list[Minibatch]:
    """A batch as `rank` trains it, in the order of its plan."""
    found = []
    for number in sorted({part.minibatch for part in batch.plan}):
        parts = [part for part in batch.plan if part.minibatch == number]
        everyone = [batch.samples[position] for part in parts for position in part.positions]
        own = tuple(
            tuple(batch.samples[position] for position in part.positions)
            for part in parts
            if part.rank == rank
        )
        found.append(Minibatch(micro_batches=own, denominators=_denominators(everyone)))
    return found


def accumulate(
    policy: torch.nn.Module,
    backward: Callable[[Tensor], object],
    minibatch: Minibatch,
    algorithm: AlgorithmConfig,
    *,
    device: torch.device,
    scale: float = 1.0,
) -> tuple[float, RatioSums]:
    """Add the gradient of a minibatch; returns this rank's share of the loss and its statistics.

    Args:
        policy: called for log-probabilities.
        backward: called with each micro-batch's share of the loss, times `scale`.
        minibatch: what to do.
        algorithm: names the loss.
        device: where the policy is.
        scale: undoes an engine's averaging over ranks.
    """
    loss, sums = 0.0, RatioSums()
    clip_low, clip_high = algorithm.clip_low, algorithm.clip_high
    for samples in minibatch.micro_batches:
        batch = collate(samples).to(device)
        log_ratios_BR = log_ratios(policy_logprobs(policy, batch), batch.behaviour_logprobs_BR, batch.mask_BR)
        losses_BR = clipped_policy_losses(
            log_ratios_BR, batch.advantages_B, batch.mask_BR, clip_low=clip_low, clip_high=clip_high
        )
        share = aggregate(losses_BR, batch.mask_BR, algorithm.aggregation, minibatch.denominators)
        backward(share * scale if scale != 1.0 else share)
        loss += share.item()
        sums += ratio_sums(
            log_ratios_BR, batch.advantages_B, batch.mask_BR, clip_low=clip_low, clip_high=clip_high
        )
    return loss, sums


def step_statistics(sums: Sequence[RatioSums]) -> dict[str, float]:
    """Figures over all minibatches, and how far the first one, before any update, is from the behaviour policy.

    The latter, called `first_...`, say how off-policy the batch itself was: they are what alpha is controlled by.
    """
    if not sums:
        return {}
    total, first = sum(sums, start=RatioSums()), sums[0].summary()
    measured = {f"first_{name}": first[name] for name in _off_policy if name in first}
    return total.summary() | measured | {"first_log_ratio_max": sums[0].log_ratio_max}


def _denominators(samples: Sequence[TrainingSample]) -> Denominators:
    trained = [int(np.count_nonzero(sample.loss_mask)) for sample in samples]
    return Denominators(num_tokens=sum(trained), num_sequences=sum(count > 0 for count in trained))
