"""Policy losses per token: clipped surrogates, and log-probabilities weighted by truncated ratios.

With r = exp(log pi - mu), at the level of a token or of a whole response (`trainer.step.losses.ratios.at_level`), sg()
for "without gradient" and [r]_a^b for r cut to the interval from a to b:

    clipped surrogate          l = -min(r A, [r]_(1-low)^(1+high) A)                          PPO, GRPO, DAPO, GSPO ...
    decoupled surrogate        l = -sg([w]_a^b) min(u A, [u]_(1-low)^(1+high) A)              decoupled PPO, TIS
    weighted log-probability   l = -sg([r]_a^b) A log pi                                      policy gradient, CISPO
    TOPR                       l = -c+ A log pi where A >= 0, -c- sg([r]_a^b) A log pi else   TOPR, weighted TOPR

Where r = 1 and nothing is cut, all have the gradient of the policy gradient, -A grad log pi.
"""
# ruff: noqa: N815 - fields that are tensors carry shape suffixes

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer.step.losses.ratios import at_level, at_level_with_credit, log_ratios

if TYPE_CHECKING:
    from rollog.settings.training import RatioLevel

Bounds = tuple[float, float | None]
"""Smallest and largest importance weight; None is no bound."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLosses:
    """Losses per token, 0 at masked positions, and where the loss cut off a gradient or cut a weight (bool).

    `value_losses_BR` are what a value head has of them, before its coefficient.
    """

    losses_BR: Tensor
    clipped_BR: Tensor
    value_losses_BR: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """What a policy loss is a function of, beside its constants.

    `mask_BR` is bool, True where a token is trained. Advantages may be (B, 1): one for all tokens of a sample. Only
    `logprobs_BR` carries a gradient. What masked positions hold does not matter.
    """

    logprobs_BR: Tensor
    behaviour_logprobs_BR: Tensor
    advantages_BR: Tensor
    mask_BR: Tensor

    def masked_advantages(self) -> Tensor:
        """The advantages at unmasked positions, 0 elsewhere."""
        return torch.where(self.mask_BR, self.advantages_BR, 0.0)

    def log_ratios(self, level: RatioLevel = "token") -> Tensor:
        """The log ratio of the policy to the behaviour policy."""
        return at_level(
            log_ratios(self.logprobs_BR, self.behaviour_logprobs_BR, self.mask_BR), self.mask_BR, level
        )


def clipped_losses(
    tokens: Tokens,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    level: RatioLevel = "token",
) -> TokenLosses:
    """The clipped surrogate against the behaviour policy.

        l = -min(r A, [r]_(1-low)^(1+high) A)       r = pi / mu

    PPO (arXiv 1707.06347, equation 7); with high > low the clip-higher of DAPO (arXiv 2503.14476, equation 8). With
    level `sequence_mean` GSPO (arXiv 2507.18071, equations 5 to 7): r = (pi(y|x) / mu(y|x))^(1/|y|); where
    tokens have advantages of their own its token form, equations 13 and 14.

    Args:
        tokens: what to learn from.
        clip_low: the ratio is clipped below at 1 - clip_low.
        clip_high: ... and above at 1 + clip_high.
        dual_clip: where A < 0, the objective is at least dual_clip * A: l = -max(min(...), dual_clip A) (dual-clip PPO,
            arXiv 1912.09729); None is no such bound.
        level: whose ratio it is.
    """
    return _clipped(
        _surrogate_log_ratios(tokens, tokens.behaviour_logprobs_BR, level),
        tokens,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )


def decoupled_losses(
    tokens: Tokens,
    proximal_logprobs_BR: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    weights: Bounds = (0.0, None),
    dual_clip: float | None = None,
    level: RatioLevel = "token",
) -> TokenLosses:
    """The clipped surrogate against a proximal policy, corrected for the behaviour policy.

        l = -sg([w]_a^b) min(u A, [u]_(1-low)^(1+high) A)       w = proximal / mu, u = pi / proximal

    Decoupled PPO (arXiv 2110.00641; for asynchronous training AReaL, arXiv 2505.24298, equation 5) without
    bounds on w; truncated importance sampling, TIS, with b = C (F. Yao et al., "Your efficient RL framework secretly
    brings you off-policy RL training", 2025).

    Args:
        tokens: what to learn from.
        proximal_logprobs_BR: log-probabilities of the policy as it was before the training step; no gradient goes in.
        clip_low: u is clipped below at 1 - clip_low.
        clip_high: ... and above at 1 + clip_high.
        weights: a and b.
        dual_clip: as in `clipped_losses`, on u.
        level: whose ratios u and w are.
    """
    proximal_BR = torch.where(tokens.mask_BR, proximal_logprobs_BR.detach(), 0.0)
    of_proximal_BR = at_level(
        log_ratios(proximal_BR, tokens.behaviour_logprobs_BR, tokens.mask_BR), tokens.mask_BR, level
    )
    weights_BR, cut_BR = _weights(of_proximal_BR, tokens.mask_BR, weights)
    to_proximal_BR = _surrogate_log_ratios(tokens, proximal_BR, level)
    surrogate = _clipped(to_proximal_BR, tokens, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    return TokenLosses(losses_BR=weights_BR * surrogate.losses_BR, clipped_BR=surrogate.clipped_BR | cut_BR)


def weighted_losses(
    tokens: Tokens, *, weights: Bounds = (0.0, None), level: RatioLevel = "token"
) -> TokenLosses:
    """Log-probabilities weighted by advantage and importance.

        l = -sg([r]_a^b) A log pi       r = pi / mu

    Without bounds the policy gradient (REINFORCE, Williams 1992) corrected for the behaviour policy; with a = b = 1
    without that correction; with an upper bound CISPO (MiniMax-M1, arXiv 2506.13585, equations 4 and 5), which keeps
    the gradient of every token where PPO drops it.

    Args:
        tokens: what to learn from.
        weights: a and b.
        level: whose ratio r is.
    """
    weights_BR, cut_BR = _weights(tokens.log_ratios(level).detach(), tokens.mask_BR, weights)
    return TokenLosses(
        losses_BR=-weights_BR * tokens.masked_advantages() * _kept_logprobs(tokens), clipped_BR=cut_BR
    )


def topr_losses(
    tokens: Tokens,
    *,
    weights: Bounds = (0.0, 1.0),
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
    level: RatioLevel = "sequence",
) -> TokenLosses:
    """Tapered off-policy REINFORCE: good responses as they are, bad ones by their truncated ratio.

        l = -c+ A log pi                  where A >= 0
        l = -c- sg([r]_a^b) A log pi      where A < 0       r = pi(y|x) / mu(y|x), a = 0, b = 1

    TOPR (arXiv 2503.14286, equation 8) with c+ = c- = 1; weighted TOPR (ROLL Flash, arXiv 2510.11345) with others.

    Args:
        tokens: what to learn from.
        weights: a and b.
        positive_weight: c+.
        negative_weight: c-.
        level: whose ratio r is; the paper's is that of the whole response.
    """
    is_good_BR = tokens.masked_advantages() >= 0
    weights_BR, cut_BR = _weights(tokens.log_ratios(level).detach(), tokens.mask_BR, weights)
    factors_BR = torch.where(is_good_BR, positive_weight, negative_weight * weights_BR)
    return TokenLosses(
        losses_BR=-factors_BR * tokens.masked_advantages() * _kept_logprobs(tokens),
        clipped_BR=cut_BR & ~is_good_BR,
    )


def _surrogate_log_ratios(tokens: Tokens, others_BR: Tensor, level: RatioLevel) -> Tensor:
    """Log ratios of the policy to another, whose gradient keeps the credit that tokens have of their own."""
    log_ratios_BR = log_ratios(tokens.logprobs_BR, others_BR, tokens.mask_BR)
    return at_level_with_credit(log_ratios_BR, tokens.advantages_BR, tokens.mask_BR, level)


def _clipped(
    log_ratios_BR: Tensor, tokens: Tokens, *, clip_low: float, clip_high: float, dual_clip: float | None
) -> TokenLosses:
    """A token counts as clipped when the clip removes its gradient."""
    advantages_BR = tokens.masked_advantages()
    ratios_BR = log_ratios_BR.exp()
    clipped_BR = ratios_BR.clamp(1.0 - clip_low, 1.0 + clip_high)
    objectives_BR = torch.minimum(ratios_BR * advantages_BR, clipped_BR * advantages_BR)
    is_bad_BR = advantages_BR < 0
    is_clipped_BR = ((advantages_BR > 0) & (ratios_BR > 1 + clip_high)) | (
        is_bad_BR & (ratios_BR < 1 - clip_low)
    )
    if dual_clip is not None:
        bounds_BR = dual_clip * advantages_BR
        objectives_BR = torch.where(is_bad_BR, torch.maximum(objectives_BR, bounds_BR), objectives_BR)
        is_clipped_BR |= is_bad_BR & (ratios_BR > max(dual_clip, 1.0 - clip_low))
    return TokenLosses(losses_BR=-objectives_BR, clipped_BR=is_clipped_BR)


def _weights(log_ratios_BR: Tensor, mask_BR: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Ratios cut to `bounds`, and where they were cut."""
    low, high = bounds
    ratios_BR = log_ratios_BR.exp()
    weights_BR = ratios_BR.clamp(min=low, max=high)
    return weights_BR, mask_BR & (weights_BR != ratios_BR)


def _kept_logprobs(tokens: Tokens) -> Tensor:
    return torch.where(tokens.mask_BR, tokens.logprobs_BR, 0.0)
