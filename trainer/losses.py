"""Policy-gradient losses against the behaviour policy.

Shapes: B samples of a micro-batch, R response positions (padded on the right).

mu is the behaviour log-probability stored in the record when the token was drawn; it is never recomputed. With
r = exp(log pi - mu) the clipped surrogate (PPO, arXiv 1707.06347, equation 7) with an asymmetric interval
(clip-higher of DAPO, arXiv 2503.14476) is, per token,

    l = -min(r A, clip(r, 1 - low, 1 + high) A)

Masked positions are replaced by constants before any arithmetic, so nothing they hold, NaN included, reaches a
value or a gradient. Sums are divided by denominators of the whole minibatch that the caller passes in: cutting a
minibatch into micro-batches leaves its gradient unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_mean"]

max_log_ratio = 20.0
"""|log r| is cut here, so that exp stays finite; beyond it a token has no gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """What the sums of one minibatch are divided by, over all its micro-batches and ranks.

    `num_tokens` counts unmasked tokens, `num_sequences` samples that have at least one.
    """

    num_tokens: int
    num_sequences: int


def log_ratios(logprobs_BR: Tensor, behaviour_logprobs_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """The log ratio log pi - mu at unmasked positions, 0 elsewhere, cut at +-`max_log_ratio`."""
    current_BR = torch.where(mask_BR, logprobs_BR, 0.0)
    behaviour_BR = torch.where(mask_BR, behaviour_logprobs_BR, 0.0)
    return (current_BR - behaviour_BR).clamp(-max_log_ratio, max_log_ratio)


def clipped_policy_losses(
    log_ratios_BR: Tensor, advantages_B: Tensor, mask_BR: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """The per-token clipped surrogate, 0 at masked positions.

    Args:
        log_ratios_BR: from `log_ratios`.
        advantages_B: one advantage per sample.
        mask_BR: bool, True where a token is trained.
        clip_low: the ratio is clipped below at 1 - clip_low.
        clip_high: ... and above at 1 + clip_high.
    """
    advantages_BR = torch.where(mask_BR, advantages_B[:, None], 0.0)
    ratios_BR = log_ratios_BR.exp()
    clipped_BR = ratios_BR.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratios_BR * advantages_BR, clipped_BR * advantages_BR)


def aggregate(
    losses_BR: Tensor, mask_BR: Tensor, aggregation: Aggregation, denominators: Denominators
) -> Tensor:
    """This micro-batch's share of the minibatch loss; the shares add up to the loss.

    `token_mean` divides the sum over tokens by the minibatch's tokens (DAPO); `sequence_mean` first averages each
    sample over its own tokens, then over the minibatch's samples (GRPO as published). Samples without an unmasked
    token count in neither.
    """
    kept_BR = torch.where(mask_BR, losses_BR, 0.0)
    if aggregation == "token_mean":
        return kept_BR.sum() / max(denominators.num_tokens, 1)
    lengths_B = mask_BR.sum(dim=1).clamp(min=1)
    return (kept_BR.sum(dim=1) / lengths_B).sum() / max(denominators.num_sequences, 1)
