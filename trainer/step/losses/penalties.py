"""What is added to a policy loss: divergence from a reference model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.step.losses.ratios import log_ratios

if TYPE_CHECKING:
    from torch import Tensor

    from rollog.settings.training import KlEstimator


def divergences(
    logprobs_BR: Tensor, reference_logprobs_BR: Tensor, mask_BR: Tensor, estimator: KlEstimator
) -> Tensor:
    """Estimates of KL(policy || reference) from each token that was drawn, 0 at masked positions.

    With d = log pi - log reference (J. Schulman, "Approximating KL divergence", 2020):

        k1 = d                  unbiased as a value; as a loss its expected gradient on policy is zero
        k2 = d^2 / 2            biased as a value; as a loss it has the gradient of KL(policy || reference) on policy
        k3 = exp(-d) - 1 + d    unbiased, never negative (GRPO, arXiv 2402.03300, equation 4)

    Args:
        logprobs_BR: of the policy in whose samples the mean is taken.
        reference_logprobs_BR: of the reference model; no gradient goes in.
        mask_BR: bool, True where a token is trained.
        estimator: which.
    """
    differences_BR = log_ratios(logprobs_BR, reference_logprobs_BR.detach(), mask_BR)
    match estimator:
        case "k1":
            return differences_BR
        case "k2":
            return differences_BR.square() / 2
        case "k3":
            return (-differences_BR).exp() - 1 + differences_BR
