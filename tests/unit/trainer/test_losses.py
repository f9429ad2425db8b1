"""Losses: cases by hand, gradients by finite difference, and what must not matter."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from rollog.settings.training import Aggregation
from trainer.step.losses.aggregation import Denominators, aggregate
from trainer.step.losses.policy import Tokens, clipped_losses
from trainer.step.losses.ratios import max_log_ratio

aggregations: list[Aggregation] = [*get_args(Aggregation)]


def denominators_of(mask_BR: Tensor) -> Denominators:
    return Denominators(
        num_tokens=int(mask_BR.sum()),
        num_samples=int(mask_BR.any(dim=1).sum()),
        tokens_per_sample=int(mask_BR.shape[1]),
    )


def loss_of(  # noqa: PLR0917 - a case is four tensors
    logprobs_BR: Tensor,
    behaviour_BR: Tensor,
    advantages_B: Tensor,
    mask_BR: Tensor,
    aggregation: Aggregation = "token_mean",
    denominators: Denominators | None = None,
) -> Tensor:
    tokens = Tokens(
        logprobs_BR=logprobs_BR,
        behaviour_logprobs_BR=behaviour_BR,
        advantages_BR=advantages_B[:, None],
        mask_BR=mask_BR,
    )
    losses_BR = clipped_losses(tokens, clip_low=0.2, clip_high=0.28).losses_BR
    return aggregate(losses_BR, mask_BR, aggregation, denominators or denominators_of(mask_BR))


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.1, 2.0, -2.2),
        (1.5, 2.0, -2.56),
        (0.5, 2.0, -1.0),
        (0.9, -2.0, 1.8),
        (0.5, -2.0, 1.6),
        (1.5, -2.0, 3.0),
        (1.5, 0.0, 0.0),
    ],
)
def test_one_token_by_hand(ratio: float, advantage: float, expected: float) -> None:
    loss = loss_of(
        torch.tensor([[math.log(ratio) - 1.0]]),
        torch.tensor([[-1.0]]),
        torch.tensor([advantage]),
        torch.ones(1, 1, dtype=torch.bool),
    )
    assert loss.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"), [(1.1, 2.0, -2.2), (1.5, 2.0, 0.0), (0.5, -2.0, 0.0), (1.5, -2.0, 3.0)]
)
def test_a_clipped_token_has_no_gradient(ratio: float, advantage: float, slope: float) -> None:
    logprobs = torch.tensor([[math.log(ratio)]], requires_grad=True)
    loss_of(
        logprobs, torch.zeros(1, 1), torch.tensor([advantage]), torch.ones(1, 1, dtype=torch.bool)
    ).backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(slope, abs=1e-6)


def test_token_mean_weighs_tokens_and_sequence_mean_weighs_samples() -> None:
    losses = torch.tensor([[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert aggregate(losses, mask, "token_mean", denominators_of(mask)).item() == pytest.approx(2.0)
    assert aggregate(losses, mask, "sequence_mean", denominators_of(mask)).item() == pytest.approx(3.0)


def test_sequence_sum_divides_each_sum_by_a_constant_however_long_the_sample_is() -> None:
    losses = torch.tensor([[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    of_ten = Denominators(num_tokens=4, num_samples=2, tokens_per_sample=10)
    assert aggregate(losses, mask, "sequence_sum", of_ten).item() == pytest.approx((3 / 10 + 5 / 10) / 2)


def a_case(seed: int = 0, rows: int = 6, width: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    logprobs = -2 + 0.4 * torch.randn(rows, width, generator=draw, dtype=torch.float64)
    behaviour = -2 + 0.4 * torch.randn(rows, width, generator=draw, dtype=torch.float64)
    advantages = torch.randn(rows, generator=draw, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=draw) < 0.7
    mask[0] = False
    return logprobs, behaviour, advantages, mask


@pytest.mark.parametrize("aggregation", aggregations)
def test_gradients_agree_with_finite_differences(aggregation: Aggregation) -> None:
    logprobs, behaviour, advantages, mask = a_case()
    logprobs.requires_grad_()
    loss_of(logprobs, behaviour, advantages, mask, aggregation).backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    step = 1e-6
    for row in range(logprobs.shape[0]):
        for column in range(logprobs.shape[1]):
            shift = torch.zeros_like(logprobs)
            shift[row, column] = step
            values = logprobs.detach()
            above = loss_of(values + shift, behaviour, advantages, mask, aggregation)
            below = loss_of(values - shift, behaviour, advantages, mask, aggregation)
            assert logprobs.grad[row, column].item() == pytest.approx(
                ((above - below) / (2 * step)).item(), abs=1e-6
            )


@pytest.mark.parametrize("aggregation", aggregations)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_positions_have_no_influence_whatever_they_hold(
    aggregation: Aggregation, garbage: float
) -> None:
    logprobs, behaviour, advantages, mask = a_case()
    expected_input = logprobs.clone().requires_grad_()
    expected = loss_of(expected_input, behaviour, advantages, mask, aggregation)
    expected.backward()  # type: ignore[no-untyped-call]

    dirty = torch.where(mask, logprobs, garbage).requires_grad_()
    dirty_advantages = advantages.clone()
    dirty_advantages[0] = garbage
    loss = loss_of(dirty, torch.where(mask, behaviour, garbage), dirty_advantages, mask, aggregation)
    loss.backward()  # type: ignore[no-untyped-call]

    assert loss.item() == expected.item()
    assert dirty.grad is not None
    assert expected_input.grad is not None
    assert torch.equal(dirty.grad, expected_input.grad)
    assert (dirty.grad[~mask] == 0).all()


@pytest.mark.parametrize("aggregation", aggregations)
def test_cutting_a_minibatch_into_micro_batches_changes_nothing(aggregation: Aggregation) -> None:
    logprobs, behaviour, advantages, mask = a_case()
    whole = logprobs.clone().requires_grad_()
    loss = loss_of(whole, behaviour, advantages, mask, aggregation)
    loss.backward()  # type: ignore[no-untyped-call]
    parts = logprobs.clone().requires_grad_()
    total = 0.0
    for rows in ([0, 1], [2], [3, 4, 5]):
        share = loss_of(
            parts[rows], behaviour[rows], advantages[rows], mask[rows], aggregation, denominators_of(mask)
        )
        share.backward()  # type: ignore[no-untyped-call]
        total += share.item()
    assert total == pytest.approx(loss.item(), abs=1e-12)
    assert parts.grad is not None
    assert whole.grad is not None
    torch.testing.assert_close(parts.grad, whole.grad)


@pytest.mark.parametrize("aggregation", aggregations)
def test_more_padding_changes_nothing(aggregation: Aggregation) -> None:
    logprobs, behaviour, advantages, mask = a_case()
    padding = torch.full((logprobs.shape[0], 3), math.nan, dtype=torch.float64)
    wider = loss_of(
        torch.cat([logprobs, padding], dim=1),
        torch.cat([behaviour, padding], dim=1),
        advantages,
        torch.cat([mask, torch.zeros_like(padding, dtype=torch.bool)], dim=1),
        aggregation,
        denominators_of(mask),
    )
    assert wider.item() == pytest.approx(loss_of(logprobs, behaviour, advantages, mask, aggregation).item())


@pytest.mark.parametrize("aggregation", aggregations)
def test_a_fully_masked_sample_counts_in_no_mean(aggregation: Aggregation) -> None:
    logprobs, behaviour, advantages, mask = a_case()
    without = loss_of(logprobs[1:], behaviour[1:], advantages[1:], mask[1:], aggregation)
    assert loss_of(logprobs, behaviour, advantages, mask, aggregation).item() == pytest.approx(without.item())


@pytest.mark.parametrize("aggregation", aggregations)
def test_nothing_to_train_is_a_loss_of_zero_with_a_gradient_of_zero(aggregation: Aggregation) -> None:
    logprobs, behaviour, advantages, mask = a_case()
    logprobs.requires_grad_()
    loss = loss_of(logprobs, behaviour, advantages, torch.zeros_like(mask), aggregation)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0.0
    assert logprobs.grad is not None
    assert not logprobs.grad.any()


def test_an_enormous_ratio_stays_finite_and_has_no_gradient() -> None:
    logprobs = torch.tensor([[0.0]], requires_grad=True)
    loss = loss_of(
        logprobs, torch.tensor([[-500.0]]), torch.tensor([-1.0]), torch.ones(1, 1, dtype=torch.bool)
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(math.exp(max_log_ratio))
    assert logprobs.grad is not None
    assert logprobs.grad.item() == 0.0
