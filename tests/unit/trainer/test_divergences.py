"""Divergences from the reference policy: by hand, unbiased, and with the right gradient off policy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.algorithm_cases import Case, configured, tokens_of

from trainer.step.algorithms import token_losses
from trainer.step.losses.penalties import divergences, weighted_divergences
from trainer.step.losses.policy import Tokens

if TYPE_CHECKING:
    from torch import Tensor


def test_divergences_by_hand() -> None:
    logprobs, reference = torch.tensor([[math.log(0.5), 9.0]]), torch.tensor([[math.log(0.25), math.nan]])
    mask = torch.tensor([[True, False]])
    expected = {"k1": math.log(2), "k2": math.log(2) ** 2 / 2, "k3": 0.5 - 1 + math.log(2)}
    for estimator, value in expected.items():
        found = divergences(logprobs, reference, mask, estimator)  # type: ignore[arg-type]
        assert found.tolist() == [pytest.approx([value, 0.0])]


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_divergence_estimates_are_unbiased_and_as_a_loss_k2_has_the_gradient_of_the_divergence(
    estimator: Any,
) -> None:
    logits = torch.tensor([0.3, -0.2, 1.1, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64).log()
    mask = torch.ones(1, 4, dtype=torch.bool)
    logprobs = logits.log_softmax(dim=0)
    exact = (logprobs.exp() * (logprobs - reference)).sum()
    mean = (logprobs.exp() * divergences(logprobs[None], reference[None], mask, estimator)[0]).sum()
    assert mean.item() == pytest.approx(exact.item())
    wanted = torch.autograd.grad(exact, logits, retain_graph=True)[0]
    loss = (logprobs.exp().detach() * divergences(logprobs[None], reference[None], mask, "k2")[0]).sum()
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], wanted)


def _enumerated_gradients(estimator: str, *, is_weighted: bool) -> tuple[Tensor, Tensor]:
    """The gradient of KL(policy, reference) in four logits, and what the loss has when mu draws each token."""
    draw = torch.Generator().manual_seed(16)
    logits, reference, behaviour = (2 * torch.randn(4, generator=draw, dtype=torch.float64) for _ in range(3))
    reference, behaviour = reference.log_softmax(0), behaviour.log_softmax(0)
    logits.requires_grad_()
    logprobs = logits.log_softmax(0)
    (true,) = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True)
    tokens = Tokens(
        logprobs_BR=logprobs[:, None],
        behaviour_logprobs_BR=behaviour[:, None],
        advantages_BR=torch.zeros(4, 1),
        mask_BR=torch.ones(4, 1, dtype=torch.bool),
    )
    algorithm = configured(
        "grpo", kl_coefficient=1.0, kl_estimator=estimator, kl_weight="ratio" if is_weighted else "none"
    )
    losses = token_losses(tokens, algorithm, reference_logprobs_BR=reference[:, None]).losses_BR
    (found,) = torch.autograd.grad((behaviour.exp() * losses[:, 0]).sum(), logits)
    return true, found


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_weighted_by_the_ratio_every_estimate_has_the_gradient_of_the_divergence_off_policy(
    estimator: str,
) -> None:
    """All tokens of a toy vocabulary, each as often as the behaviour policy draws it."""
    true, found = _enumerated_gradients(estimator, is_weighted=True)
    assert torch.allclose(true, found, atol=1e-12)

    true, unweighted = _enumerated_gradients(estimator, is_weighted=False)
    assert torch.cosine_similarity(true, unweighted, dim=0) < 0.7


def test_a_weighted_divergence_is_nothing_at_masked_positions() -> None:
    case = Case()
    estimates = weighted_divergences(tokens_of(case), case.reference, "k3")
    assert not estimates[~case.mask].any()
