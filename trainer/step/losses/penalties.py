"""What is added to a policy loss: divergence from a reference model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.step.losses.ratios import log_ratios

if TYPE_CHECKING:
    from torch import Tensor

    from rollog.settings.training import KlEstimator
    from trainer.step.losses.policy import Tokens


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


def weighted_divergences(tokens: Tokens, reference_logprobs_BR: Tensor, estimator: KlEstimator) -> Tensor:
    """Estimates of KL(policy || reference) from tokens that the behaviour policy drew, 0 at masked positions.

        k1, k3      r k, with the gradient of both: r (k grad log pi + grad k)
        k2          sg(r) k: r d grad log pi

    with r = pi / mu, without bounds but that of `log_ratios`. Of all three the expected gradient is that of
    KL(policy || reference) given what stands before the token: E_mu[r d grad log pi] (for k3 exactly, token by token;
    DeepSeek-V3.2, arXiv 2512.02556, section 3.1). Where r = 1 k2 is as without weight; k1 and k3 are not, because
    without weight they leave out that the policy draws the tokens.

    Args:
        tokens: log-probabilities of both policies; those of the policy carry a gradient.
        reference_logprobs_BR: of the reference model; no gradient goes in.
        estimator: k.
    """
    estimates_BR = divergences(tokens.logprobs_BR, reference_logprobs_BR, tokens.mask_BR, estimator)
    ratios_BR = tokens.log_ratios().exp()
    return estimates_BR * (ratios_BR.detach() if estimator == "k2" else ratios_BR)
