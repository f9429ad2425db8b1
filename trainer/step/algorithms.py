"""The loss of each token as `[algorithm]` says: which loss for which type, masks, divergence, entropy, values.

Pure. Shapes: B samples of a micro-batch, R response positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer.step.losses.penalties import divergences, weighted_divergences
from trainer.step.losses.policy import (
    TokenLosses,
    clipped_losses,
    decoupled_losses,
    topr_losses,
    weighted_losses,
)
from trainer.step.losses.ratios import at_level, outside
from trainer.step.losses.values import Values, value_losses

if TYPE_CHECKING:
    from rollog.settings.training import AlgorithmConfig, RatioLevel
    from trainer.step.losses.policy import Tokens


def policy_losses(
    tokens: Tokens, algorithm: AlgorithmConfig, proximal_logprobs_BR: Tensor | None = None
) -> TokenLosses:
    """The policy loss of `algorithm.type`, without mask and penalties.

    `proximal_logprobs_BR` are needed where `algorithm.needs_proximal`. Raises ValueError without them.
    """
    level, weights = algorithm.ratio_level, (algorithm.weight_low, algorithm.weight_high)
    match algorithm.type:
        case "ppo" | "grpo" | "dr_grpo" | "dapo" | "reinforce_plus_plus" | "gspo":
            return clipped_losses(
                tokens,
                clip_low=algorithm.clip_low,
                clip_high=algorithm.clip_high,
                dual_clip=algorithm.dual_clip,
                level=level,
            )
        case "decoupled_ppo" | "tis":
            if proximal_logprobs_BR is None:
                raise ValueError(f"algorithm.type = {algorithm.type!r} needs proximal log-probabilities")
            return decoupled_losses(
                tokens,
                proximal_logprobs_BR,
                clip_low=algorithm.clip_low,
                clip_high=algorithm.clip_high,
                weights=weights,
                dual_clip=algorithm.dual_clip,
                level=level,
            )
        case "policy_gradient" | "rloo" | "cispo":
            return weighted_losses(tokens, weights=weights, level=level)
        case "topr":
            return topr_losses(tokens, weights=weights, level=level)
        case "weighted_topr":
            return topr_losses(
                tokens,
                weights=weights,
                positive_weight=algorithm.positive_weight,
                negative_weight=algorithm.negative_weight,
                level=level,
            )


def extreme_tokens(log_ratios_BR: Tensor, mask_BR: Tensor, algorithm: AlgorithmConfig) -> Tensor | None:
    """Bool: tokens that are not learnt from because their ratio, or their response's, is extreme; None without bounds.

    The ratio is that of the policy to the behaviour policy, of a response its geometric mean. Such tokens still count
    in the denominators.
    """
    low, high = algorithm.mask_ratio_low, algorithm.mask_ratio_high
    if low is None and high is None:
        return None
    level: RatioLevel = "token" if algorithm.mask_level == "token" else "sequence_mean"
    return outside(at_level(log_ratios_BR.detach(), mask_BR, level), mask_BR, low, high)


def token_losses(
    tokens: Tokens,
    algorithm: AlgorithmConfig,
    *,
    extreme_BR: Tensor | None = None,
    proximal_logprobs_BR: Tensor | None = None,
    reference_logprobs_BR: Tensor | None = None,
    entropies_BR: Tensor | None = None,
    values: Values | None = None,
) -> TokenLosses:
    """The whole loss of each token.

        l = policy loss (0 where extreme) + kl_coefficient * divergence - entropy_coefficient * entropy
            + value_coefficient * value loss

    Args:
        tokens: what to learn from.
        algorithm: selects the loss and holds its constants.
        extreme_BR: from `extreme_tokens`.
        proximal_logprobs_BR: log-probabilities of the policy before the training step, where the type needs them.
        reference_logprobs_BR: those of the reference model, where the divergence is in the loss.
        entropies_BR: of the policy's next-token distributions, where the entropy has a coefficient.
        values: of the value head, where there is one.
    """
    policy = policy_losses(tokens, algorithm, proximal_logprobs_BR)
    losses_BR = policy.losses_BR
    if extreme_BR is not None:
        losses_BR = torch.where(extreme_BR, 0.0, losses_BR)
    if algorithm.kl_coefficient > 0 and algorithm.kl_in == "loss":
        if reference_logprobs_BR is None:
            raise ValueError("algorithm.kl_coefficient needs log-probabilities of the reference model")
        losses_BR = losses_BR + algorithm.kl_coefficient * _divergences(
            tokens, reference_logprobs_BR, algorithm
        )
    if algorithm.entropy_coefficient > 0:
        if entropies_BR is None:
            raise ValueError("algorithm.entropy_coefficient needs entropies")
        losses_BR = losses_BR - algorithm.entropy_coefficient * torch.where(tokens.mask_BR, entropies_BR, 0.0)
    if not algorithm.needs_values:
        return TokenLosses(losses_BR=losses_BR, clipped_BR=policy.clipped_BR)
    if values is None:
        raise ValueError("algorithm.advantage = 'gae' needs values")
    of_values_BR = value_losses(values, tokens.mask_BR, clip=algorithm.value_clip or None)
    return TokenLosses(
        losses_BR=losses_BR + algorithm.value_coefficient * of_values_BR,
        clipped_BR=policy.clipped_BR,
        value_losses_BR=of_values_BR.detach(),
    )


def _divergences(tokens: Tokens, reference_logprobs_BR: Tensor, algorithm: AlgorithmConfig) -> Tensor:
    if algorithm.kl_weight == "ratio":
        return weighted_divergences(tokens, reference_logprobs_BR, algorithm.kl_estimator)
    return divergences(tokens.logprobs_BR, reference_logprobs_BR, tokens.mask_BR, algorithm.kl_estimator)
