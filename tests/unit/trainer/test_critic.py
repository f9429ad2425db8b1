"""Advantages of single tokens from values: by hand, from the formula, and shared out among ranks."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.small_training import a_batch, a_training_sample
from support.step_engine import DescentEngine, ThreadsMeeting
from torch import Tensor, nn

from rollog.kernel.errors import EngineError
from rollog.settings.training import AlgorithmConfig
from schemas import MicroBatch
from trainer.engines.multi_rank.messages import of_rank
from trainer.step.advantages import gae_advantages
from trainer.step.critic import with_token_advantages
from trainer.step.losses.aggregation import Denominators, aggregate
from trainer.step.losses.values import Values, value_losses
from trainer.step.ports import TrainingBatch

if TYPE_CHECKING:
    from rollog.settings.training import Aggregation

numbers = st.floats(-10, 10)


def by_formula(values: list[float], rewards: list[float], discount: float, gae_lambda: float) -> list[float]:
    """The sum of (discount lambda)^l delta_(t+l), term by term."""
    after = [*values[1:], 0.0]
    deltas = [r + discount * v - u for r, v, u in zip(rewards, after, values, strict=True)]
    return [
        sum((discount * gae_lambda) ** (later - t) * deltas[later] for later in range(t, len(values)))
        for t in range(len(values))
    ]


def last(num_tokens: int, reward: float) -> Any:
    return np.array([0.0] * (num_tokens - 1) + [reward])


def test_three_tokens_by_hand() -> None:
    found = gae_advantages(np.array([0.5, 0.25, 1.0]), last(3, 2.0), discount=0.5, gae_lambda=0.5)
    assert found.tolist() == [-0.375 + 0.25 * (0.25 + 0.25 * 1.0), 0.25 + 0.25 * 1.0, 1.0]


@given(
    tokens=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8),
    discount=st.floats(0.1, 1),
    gae_lambda=st.floats(0, 1),
)
def test_it_is_the_sum_of_the_formula(
    tokens: list[tuple[float, float]], discount: float, gae_lambda: float
) -> None:
    values, rewards = (list(column) for column in zip(*tokens, strict=True))
    found = gae_advantages(np.array(values), np.array(rewards), discount=discount, gae_lambda=gae_lambda)
    assert found.tolist() == pytest.approx(by_formula(values, rewards, discount, gae_lambda), abs=1e-9)


def test_lambda_1_compares_the_reward_with_the_value_and_lambda_0_with_the_next_value() -> None:
    values = np.array([0.3, -0.2, 0.9])
    assert gae_advantages(values, last(3, 1.0), gae_lambda=1.0).tolist() == pytest.approx([0.7, 1.2, 0.1])
    assert gae_advantages(values, last(3, 1.0), gae_lambda=0.0).tolist() == pytest.approx([-0.5, 1.1, 0.1])


def test_without_values_every_token_has_the_return() -> None:
    assert gae_advantages(np.zeros(3), last(3, 2.0), gae_lambda=1.0).tolist() == [2.0, 2.0, 2.0]
    assert gae_advantages(np.zeros(0), np.zeros(0)).tolist() == []


@pytest.mark.parametrize(
    ("value", "target", "old", "clip", "expected", "slope"),
    [
        (0.5, 1.0, 0.5, None, 0.125, -0.5),
        (0.8, 1.0, 0.5, None, 0.02, -0.2),
        (0.8, 1.0, 0.5, 0.2, 0.045, 0.0),  # moved further than it may: what it gained does not count
        (0.6, 1.0, 0.5, 0.2, 0.08, -0.4),
        (0.2, 1.0, 0.5, 0.2, 0.32, -0.8),  # moved the wrong way: that counts in full
    ],
)
def test_one_value_by_hand(  # noqa: PLR0917 - a case is six numbers
    value: float, target: float, old: float, clip: float | None, expected: float, slope: float
) -> None:
    given_value = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    values = Values(
        values_BR=given_value, returns_BR=torch.tensor([[target]]), old_values_BR=torch.tensor([[old]])
    )
    loss = value_losses(values, torch.ones(1, 1, dtype=torch.bool), clip=clip)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(expected)
    assert given_value.grad is not None
    assert given_value.grad.item() == pytest.approx(slope)


def test_masked_values_have_no_influence_whatever_they_hold() -> None:
    mask = torch.tensor([[True, False]])
    given_values = torch.tensor([[0.5, math.nan]], requires_grad=True)
    values = Values(
        values_BR=given_values,
        returns_BR=torch.tensor([[1.0, math.nan]]),
        old_values_BR=torch.tensor([[0.4, math.inf]]),
    )
    losses = value_losses(values, mask, clip=0.2)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert losses.tolist() == [[0.125, 0.0]]
    assert given_values.grad is not None
    assert given_values.grad.tolist() == [[-0.5, 0.0]]


def test_the_gradient_agrees_with_finite_differences() -> None:
    draw = torch.Generator().manual_seed(0)
    start, target, old = (torch.randn(4, 5, generator=draw, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(4, 5, generator=draw) < 0.7

    def loss(values: Tensor) -> Tensor:
        given_values = Values(values_BR=values, returns_BR=target, old_values_BR=old)
        return value_losses(given_values, mask, clip=0.3).sum()

    assert torch.autograd.gradcheck(loss, start.requires_grad_())


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum"])
def test_cutting_a_minibatch_into_micro_batches_changes_nothing(aggregation: Aggregation) -> None:
    draw = torch.Generator().manual_seed(1)
    start, target, old = (torch.randn(6, 5, generator=draw, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(6, 5, generator=draw) < 0.7
    denominators = Denominators(
        num_tokens=int(mask.sum()), num_samples=int(mask.any(dim=1).sum()), tokens_per_sample=5
    )

    def gradient(*parts: list[int]) -> Tensor:
        values = start.clone().requires_grad_()
        for rows in parts:
            of_part = Values(values_BR=values[rows], returns_BR=target[rows], old_values_BR=old[rows])
            losses = value_losses(of_part, mask[rows], clip=0.3)
            aggregate(losses, mask[rows], aggregation, denominators).backward()  # type: ignore[no-untyped-call]
        assert values.grad is not None
        return values.grad

    torch.testing.assert_close(gradient([0, 1], [2], [3, 4, 5]), gradient([0, 1, 2, 3, 4, 5]))


class ValuedPolicy(nn.Module):
    """The value before a token is a function of the token to come, whatever else is in the batch."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, _ids: Tensor, _source: Tensor, *rest: Tensor, **_: Any) -> tuple[Tensor, None, Tensor]:
        target_N, response_N, mask_BR = rest
        values_N = self.scale * (target_N.float() * 0.1).sin()
        flat = torch.zeros(mask_BR.numel()).index_copy(0, response_N, values_N)
        return torch.zeros_like(flat).view_as(mask_BR), None, flat.view_as(mask_BR)


gae = AlgorithmConfig(type="ppo", advantage="gae", gae_lambda=0.9, discount=0.95)


def estimated(
    batch: TrainingBatch, algorithm: AlgorithmConfig = gae
) -> tuple[TrainingBatch, dict[str, float]]:
    return with_token_advantages(batch, DescentEngine(ValuedPolicy()), algorithm)


def advantages(batch: TrainingBatch, position: int) -> list[float]:
    estimates = batch.samples[position].estimates
    assert estimates is not None
    found: list[float] = estimates.advantages.tolist()
    return found


def test_tokens_out_of_the_mask_are_passed_over() -> None:
    kept, masked = a_training_sample(3), a_training_sample(3, mask=[1, 0, 1, 1])
    batch = TrainingBatch(
        samples=(replace(kept, reward=1.0), replace(masked, reward=1.0)),
        plan=(MicroBatch(minibatch=0, rank=0, positions=(0, 1)),),
    )
    found, _ = estimated(batch, gae.model_copy(update={"normalize_std": False}))
    values = [math.sin(token * 0.1) for token in kept.token_ids.tolist()]
    assert advantages(found, 0) == pytest.approx(
        by_formula(values, [0.0, 0.0, 0.0, 1.0], 0.95, 0.9), abs=1e-6
    )
    first, third, fourth = by_formula([values[0], *values[2:]], [0.0, 0.0, 1.0], 0.95, 0.9)
    assert advantages(found, 1) == pytest.approx([first, 0.0, third, fourth], abs=1e-6)
    estimates = found.samples[1].estimates
    assert estimates is not None
    raw = [first, 0.0, third, fourth]
    expected = [a + v * m for a, v, m in zip(raw, values, [1, 0, 1, 1], strict=True)]
    assert estimates.returns.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_reward_of_a_turn_comes_with_its_last_token() -> None:
    sample = replace(
        a_training_sample(3, response_tokens=5, mask=[1, 1, 0, 1, 0]), reward=9.0, turn_rewards=(2.0, -1.0)
    )
    batch = TrainingBatch(samples=(sample,), plan=(MicroBatch(minibatch=0, rank=0, positions=(0,)),))
    found, _ = estimated(batch, gae.model_copy(update={"normalize_std": False}))
    values = [math.sin(token * 0.1) for token in sample.token_ids[[0, 1, 3]].tolist()]
    first, second, fourth = by_formula(values, [0.0, 2.0, -1.0], 0.95, 0.9)
    assert advantages(found, 0) == pytest.approx([first, second, 0.0, fourth, 0.0], abs=1e-6)


def test_advantages_are_normalized_over_the_tokens_of_the_batch() -> None:
    batch = a_batch(0, with_rewards=True)
    found, _ = estimated(batch)
    raw, _ = estimated(batch, gae.model_copy(update={"normalize_std": False}))
    every, before = (
        np.array([each for place in range(len(batch.samples)) for each in advantages(which, place)])
        for which in (found, raw)
    )
    assert every.mean() == pytest.approx(0.0, abs=1e-6)
    assert every.std(ddof=1) == pytest.approx(1.0, abs=1e-4)
    assert every == pytest.approx((before - before.mean()) / before.std(ddof=1), abs=1e-4)


@pytest.mark.parametrize("num_epochs", [1, 3])
def test_ranks_find_what_one_finds_each_for_the_samples_it_trains_in_any_pass(num_epochs: int) -> None:
    alone, statistics = estimated(a_batch(0, with_rewards=True))
    batch = a_batch(0, with_rewards=True, world_size=2, micro_batch_tokens=25, num_epochs=num_epochs)
    meeting = ThreadsMeeting(2)

    def estimated_by(rank: int) -> tuple[TrainingBatch, dict[str, float]]:
        engine = DescentEngine(ValuedPolicy(), rank=rank, exchange=meeting.exchange)
        return with_token_advantages(of_rank(batch, rank), engine, gae)

    with ThreadPoolExecutor(2) as pool:
        shared = list(pool.map(estimated_by, (0, 1)))
    for position in range(len(batch.samples)):
        owners = {planned.rank for planned in batch.plan if position in planned.positions}
        for rank in (0, 1):
            if rank in owners:
                assert advantages(shared[rank][0], position) == pytest.approx(
                    advantages(alone, position), abs=1e-6
                )
            else:
                assert shared[rank][0].samples[position].estimates is None
    assert shared[0][1] == shared[1][1] == pytest.approx(statistics)


def test_statistics_say_how_much_the_values_know() -> None:
    sample = a_training_sample(1, response_tokens=2)
    batch = TrainingBatch(
        samples=(replace(sample, reward=3.0), replace(sample, reward=1.0)),
        plan=(MicroBatch(minibatch=0, rank=0, positions=(0, 1)),),
    )
    knows_nothing = AlgorithmConfig(advantage="gae", gae_lambda=1.0)
    _, statistics = with_token_advantages(batch, DescentEngine(ValuedPolicy(0.0)), knows_nothing)
    assert statistics == pytest.approx({"value_mean": 0.0, "return_mean": 2.0, "explained_variance": 0.0})


def test_values_that_are_no_numbers_end_the_step() -> None:
    with pytest.raises(EngineError, match="no numbers"):
        with_token_advantages(a_batch(0), DescentEngine(ValuedPolicy(math.nan)), gae)


def test_without_a_critic_the_batch_stays_as_it_is() -> None:
    batch = a_batch(0)
    assert with_token_advantages(batch, DescentEngine(ValuedPolicy()), AlgorithmConfig()) == (batch, {})
