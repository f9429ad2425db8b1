"""From losses of tokens to the loss of a minibatch.

Sums are divided by denominators of the whole minibatch that the caller passes in: cutting a minibatch into
micro-batches, or sharing it among ranks, leaves its gradient unchanged. They count samples, not sequences: a rollout
weighs as much with ten forks as with none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rollog.settings.training import Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """What the sums of one minibatch are divided by, over all its micro-batches and ranks.

    `num_tokens` counts unmasked tokens, `num_samples` samples that have at least one in any of their sequences;
    `tokens_per_sample` is the constant that `sequence_sum` divides each sample's sum by.
    """

    num_tokens: int
    num_samples: int
    tokens_per_sample: int = 1


def aggregate(
    losses_BR: Tensor,
    mask_BR: Tensor,
    aggregation: Aggregation,
    denominators: Denominators,
    *,
    sample_tokens_B: Tensor | None = None,
) -> Tensor:
    """This micro-batch's share of the minibatch loss; the shares add up to the loss.

    `token_mean` divides the sum over tokens by the minibatch's tokens (DAPO, arXiv 2503.14476, equation 8);
    `sequence_mean` first averages each sample over its own tokens, then over the minibatch's samples (GRPO, arXiv
    2402.03300, equation 3); `sequence_sum` divides each sample's sum by a constant, then averages over the samples (Dr.
    GRPO, arXiv 2503.20783). Samples without an unmasked token count in none.

    A row is one sequence of a sample. `sample_tokens_B` has the unmasked tokens of all sequences of its sample, which
    may be in other micro-batches and on other ranks; None where every row is a whole sample.
    """
    kept_BR = torch.where(mask_BR, losses_BR, 0.0)
    num_samples = max(denominators.num_samples, 1)
    match aggregation:
        case "token_mean":
            return kept_BR.sum() / max(denominators.num_tokens, 1)
        case "sequence_mean":
            lengths_B = (mask_BR.sum(dim=1) if sample_tokens_B is None else sample_tokens_B).clamp(min=1)
            return (kept_BR.sum(dim=1) / lengths_B).sum() / num_samples
        case "sequence_sum":
            return kept_BR.sum() / (num_samples * denominators.tokens_per_sample)
