"""Losses and ratios of algorithms worked out by hand: clips, weights, tapering, responses, extreme tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from support.algorithm_cases import Case, configured, tokens_of

from trainer.step.algorithms import extreme_tokens, token_losses
from trainer.step.losses.policy import (
    Tokens,
    clipped_losses,
    decoupled_losses,
    topr_losses,
    weighted_losses,
)
from trainer.step.losses.ratios import at_level

if TYPE_CHECKING:
    from torch import Tensor

    from rollog.settings.training import AlgorithmType


def one_token(ratio: float, advantage: float, proximal_ratio: float = 1.0) -> tuple[Tokens, Tensor, Tensor]:
    """A token with mu = 0.1: its tensors, log pi to be differentiated, and the proximal log-probability."""
    logprobs = torch.tensor([[math.log(0.1 * ratio)]], dtype=torch.float64, requires_grad=True)
    behaviour = torch.tensor([[math.log(0.1)]], dtype=torch.float64)
    tokens = Tokens(
        logprobs_BR=logprobs,
        behaviour_logprobs_BR=behaviour,
        advantages_BR=torch.tensor([[advantage]], dtype=torch.float64),
        mask_BR=torch.ones(1, 1, dtype=torch.bool),
    )
    return tokens, logprobs, behaviour + math.log(proximal_ratio)


def slope(losses: Tensor, logprobs: Tensor) -> float:
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    return logprobs.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "gradient"),
    [(1.5, 2.0, -2.4, 0.0), (0.5, 2.0, -1.0, -1.0), (2.0, -1.0, 2.0, 2.0), (5.0, -1.0, 3.0, 0.0)],
)
def test_dual_clip_by_hand(ratio: float, advantage: float, expected: float, gradient: float) -> None:
    tokens, logprobs, _ = one_token(ratio, advantage)
    losses = clipped_losses(tokens, clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    assert losses.losses_BR.item() == pytest.approx(expected)
    assert losses.clipped_BR.item() is (gradient == 0.0)
    assert slope(losses.losses_BR, logprobs) == pytest.approx(gradient)


@pytest.mark.parametrize(
    ("ratio", "proximal_ratio", "bound", "expected", "gradient"),
    [
        (3.0, 3.0, None, -3.0, -3.0),  # on the proximal policy: weight 3, surrogate -1
        (3.3, 3.0, None, -3.3, -3.3),
        (4.5, 3.0, None, -3.6, 0.0),  # clipped at 1.2 of the proximal policy
        (3.3, 3.0, 2.0, -2.2, -2.2),  # the weight truncated at 2
    ],
)
def test_decoupled_clipping_by_hand(
    ratio: float, proximal_ratio: float, bound: float | None, expected: float, gradient: float
) -> None:
    tokens, logprobs, proximal = one_token(ratio, 1.0, proximal_ratio)
    losses = decoupled_losses(tokens, proximal, clip_low=0.2, clip_high=0.2, weights=(0.0, bound))
    assert losses.losses_BR.item() == pytest.approx(expected)
    assert slope(losses.losses_BR, logprobs) == pytest.approx(gradient)
    assert losses.clipped_BR.item() is (gradient == 0.0 or bound is not None)


@pytest.mark.parametrize(
    ("ratio", "bound", "gradient"),
    [(1.5, None, -3.0), (7.0, 5.0, -10.0), (7.0, None, -14.0), (0.5, 5.0, -1.0)],
)
def test_a_truncated_weight_keeps_the_gradient_of_its_token(
    ratio: float, bound: float | None, gradient: float
) -> None:
    tokens, logprobs, _ = one_token(ratio, 2.0)
    losses = weighted_losses(tokens, weights=(0.0, bound))
    assert losses.clipped_BR.item() is (bound is not None and ratio > bound)
    assert losses.losses_BR.item() == pytest.approx(gradient * math.log(0.1 * ratio))
    assert slope(losses.losses_BR, logprobs) == pytest.approx(gradient)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [(7.0, 2.0, -4.0), (0.2, 2.0, -4.0), (7.0, -2.0, 6.0), (0.2, -2.0, 1.2)],
)
def test_tapering_leaves_good_responses_as_they_are(ratio: float, advantage: float, gradient: float) -> None:
    tokens, logprobs, _ = one_token(ratio, advantage)
    losses = topr_losses(tokens, positive_weight=2.0, negative_weight=3.0)
    assert losses.clipped_BR.item() is (advantage < 0 and ratio > 1)
    assert slope(losses.losses_BR, logprobs) == pytest.approx(gradient)


def test_sequence_ratios_by_hand() -> None:
    log_ratios_BR = torch.tensor([[math.log(2.0), math.log(8.0), 0.0], [math.log(3.0), 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert at_level(log_ratios_BR, mask, "sequence").exp()[:, 0].tolist() == pytest.approx([16.0, 3.0])
    assert at_level(log_ratios_BR, mask, "sequence_mean").exp()[:, 2].tolist() == pytest.approx([4.0, 3.0])


def test_an_extreme_token_is_left_out_but_counted_and_keeps_its_penalty() -> None:
    case = Case(16, rows=2, width=2)
    case.mask[:] = True
    case.behaviour = case.logprobs.clone()
    case.behaviour[0, 0] -= math.log(3.0)
    algorithm = configured("grpo", mask_ratio_high=2.0, kl_coefficient=0.5)
    _, gradient = case.gradient(algorithm)
    _, of_penalty = case.gradient(configured("grpo", mask_ratio_low=0.9999999999, kl_coefficient=0.5))
    penalty = 0.5 * (1 - (case.reference[0, 0] - case.logprobs[0, 0]).exp()) / 4
    assert gradient[0, 0].item() == pytest.approx(penalty.item())
    torch.testing.assert_close(gradient[1], of_penalty[1])


def test_an_extreme_response_is_left_out_as_a_whole_by_the_geometric_mean_of_its_ratios() -> None:
    logprobs = torch.tensor([[math.log(4.0), 0.0], [math.log(4.0), math.log(0.25)]])
    tokens = Tokens(
        logprobs_BR=logprobs,
        behaviour_logprobs_BR=torch.zeros(2, 2),
        advantages_BR=torch.ones(2, 1),
        mask_BR=torch.ones(2, 2, dtype=torch.bool),
    )
    extreme = {
        level: extreme_tokens(
            tokens.log_ratios(),
            tokens.mask_BR,
            configured("grpo", mask_ratio_low=0.5, mask_ratio_high=1.9, mask_level=level),
        )
        for level in ("token", "sequence")
    }
    assert extreme["token"] is not None
    assert extreme["sequence"] is not None
    assert extreme["token"].tolist() == [[True, False], [True, True]]
    assert extreme["sequence"].tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize("level", ["sequence_mean", "sequence"])
@pytest.mark.parametrize("name", ["gspo", "decoupled_ppo"])
def test_tokens_of_one_response_keep_the_credit_they_have_of_their_own(
    name: AlgorithmType, level: str
) -> None:
    """GSPO-token: the first turn was bad and the second one good; the response's mean would teach neither."""
    logprobs = torch.full((1, 4), -1.0, dtype=torch.float64, requires_grad=True)
    tokens = Tokens(
        logprobs_BR=logprobs,
        behaviour_logprobs_BR=logprobs.detach() - 1e-5,
        advantages_BR=torch.tensor([[-1.0, -1.0, 1.0, 1.0]], dtype=torch.float64),
        mask_BR=torch.ones(1, 4, dtype=torch.bool),
    )
    losses = token_losses(
        tokens, configured(name, ratio_level=level), proximal_logprobs_BR=logprobs.detach() - 1e-5
    )
    losses.losses_BR.sum().backward()  # type: ignore[no-untyped-call]

    factor = 4.0 if level == "sequence" else 1.0
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([factor, factor, -factor, -factor], rel=1e-3)


@pytest.mark.parametrize("level", ["sequence_mean", "sequence"])
def test_the_token_form_is_the_response_form_where_all_advantages_are_one(level: str) -> None:
    """In the limit: advantages that differ by next to nothing have the gradient of one for all."""
    case = Case(3, spread=1e-5)
    algorithm = configured("gspo", ratio_level=level)
    gradients = []
    for difference in (0.0, 1e-9):
        logprobs = case.logprobs.clone().requires_grad_()
        advantages = case.advantages[:, None] + difference * torch.arange(4, dtype=torch.float64)
        token_losses(
            tokens_of(case, logprobs_BR=logprobs, advantages_BR=advantages), algorithm
        ).losses_BR.sum().backward()  # type: ignore[no-untyped-call]
        gradients.append(logprobs.grad)
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-6, atol=1e-7)  # type: ignore[arg-type]
