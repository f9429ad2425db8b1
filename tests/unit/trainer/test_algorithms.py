"""Every algorithm: against the slow reference, by finite differences, and in the limits where two of them agree."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.algorithm_cases import Case, budget, configured, tokens_of, types

from trainer.step.algorithms import token_losses
from trainer.step.losses.ratios import log_ratios, max_log_ratio

if TYPE_CHECKING:
    from rollog.settings.training import AlgorithmConfig, AlgorithmType


@st.composite
def configurations(draw: st.DrawFn) -> AlgorithmConfig:
    """Any type with any of its settings changed."""
    changes = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "aggregation": st.sampled_from(["token_mean", "sequence_mean", "sequence_sum"]),
                "ratio_level": st.sampled_from(["token", "sequence", "sequence_mean"]),
                "clip_low": st.sampled_from([0.05, 0.4]),
                "clip_high": st.sampled_from([0.05, 0.6]),
                "dual_clip": st.sampled_from([None, 1.1, 3.0]),
                "weight_low": st.sampled_from([0.0, 0.7]),
                "weight_high": st.sampled_from([None, 0.9, 1.3]),
                "positive_weight": st.sampled_from([0.5, 1.0]),
                "negative_weight": st.sampled_from([0.0, 2.0]),
                "mask_ratio_low": st.sampled_from([None, 0.7]),
                "mask_ratio_high": st.sampled_from([None, 1.4]),
                "mask_level": st.sampled_from(["token", "sequence"]),
                "kl_coefficient": st.sampled_from([0.0, 0.3]),
                "kl_estimator": st.sampled_from(["k1", "k2", "k3"]),
                "kl_in": st.sampled_from(["loss", "reward"]),
                "kl_weight": st.sampled_from(["none", "ratio"]),
                "entropy_coefficient": st.sampled_from([0.0, 0.2]),
            },
        )
    )
    return configured(draw(st.sampled_from(types)), **changes)


@settings(max_examples=150)
@given(configurations(), st.integers(0, 1000))
def test_loss_and_gradient_are_those_of_the_slow_reference(algorithm: AlgorithmConfig, seed: int) -> None:
    case = Case(seed)
    loss, gradient = case.gradient(algorithm)
    expected, expected_gradient = case.reference_gradient(algorithm)
    assert loss == pytest.approx(expected, rel=1e-6, abs=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-5)


@settings(max_examples=60)
@given(configurations(), st.integers(0, 1000), st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
def test_masked_tokens_have_no_effect_whatever_they_hold(
    algorithm: AlgorithmConfig, seed: int, garbage: float
) -> None:
    clean, dirty = Case(seed), Case(seed)
    for name in ("logprobs", "behaviour", "proximal", "reference", "entropies"):
        setattr(dirty, name, torch.where(dirty.mask, getattr(dirty, name), garbage))
    dirty.advantages[0] = garbage
    loss, gradient = clean.gradient(algorithm)
    of_dirty, gradient_of_dirty = dirty.gradient(algorithm)
    assert of_dirty == loss
    assert torch.equal(gradient_of_dirty, gradient)
    assert not gradient_of_dirty[~dirty.mask].any()


@settings(max_examples=60)
@given(configurations(), st.integers(0, 1000), st.lists(st.integers(0, 5), max_size=3))
def test_any_split_into_micro_batches_gives_the_same_gradient(
    algorithm: AlgorithmConfig, seed: int, cuts: list[int]
) -> None:
    case = Case(seed)
    loss, gradient = case.gradient(algorithm)
    logprobs = case.logprobs.clone().requires_grad_()
    bounds = [0, *sorted(cuts), 5]
    shares = [case.loss(algorithm, logprobs, slice(begin, end)) for begin, end in pairwise(bounds)]
    for share in shares:
        share.backward()  # type: ignore[no-untyped-call]
    assert sum(share.item() for share in shares) == pytest.approx(loss, abs=1e-12)
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, gradient, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", types)
def test_on_policy_every_loss_has_the_gradient_of_the_policy_gradient(name: AlgorithmType) -> None:
    case = Case(3)
    case.logprobs = case.behaviour.clone()
    case.proximal = case.behaviour.clone()
    algorithm = configured(name, aggregation="sequence_sum")
    _, gradient = case.gradient(algorithm)
    expected = torch.where(case.mask, -case.advantages[:, None], 0.0) / (
        budget * case.denominators.num_samples
    )
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("name", ["ppo", "dapo", "gspo", "decoupled_ppo", "tis"])
def test_gradients_of_clipped_losses_agree_with_finite_differences(name: AlgorithmType) -> None:
    agrees_with_differences(Case(5), configured(name, kl_coefficient=0.2, dual_clip=2.0))


@pytest.mark.parametrize("name", ["policy_gradient", "rloo", "cispo", "topr", "weighted_topr"])
def test_gradients_of_weighted_losses_agree_with_finite_differences_at_fixed_weights(
    name: AlgorithmType,
) -> None:
    """A weight carries no gradient, so the difference is taken where both bounds fix it."""
    fixed = configured(name, weight_low=0.9, weight_high=0.9, positive_weight=0.5, kl_coefficient=0.1)
    agrees_with_differences(Case(5), fixed)


def agrees_with_differences(case: Case, algorithm: AlgorithmConfig) -> None:
    _, gradient = case.gradient(algorithm)
    step = 1e-6
    for row, column in torch.ones_like(case.mask).nonzero().tolist():
        shift = torch.zeros_like(case.logprobs)
        shift[row, column] = step
        difference = case.loss(algorithm, case.logprobs + shift) - case.loss(algorithm, case.logprobs - shift)
        assert gradient[row, column].item() == pytest.approx(difference.item() / (2 * step), abs=1e-7)


same: dict[str, tuple[AlgorithmConfig, AlgorithmConfig]] = {
    "dual clip without bound is PPO": (configured("ppo", dual_clip=1e9), configured("ppo")),
    "GRPO with PPO's clip is PPO": (configured("grpo", clip_high=0.2), configured("ppo")),
    "DAPO is GRPO with clip-higher": (configured("dapo", overlong_share=0.0), configured("grpo")),
    "Dr. GRPO with the token mean is PPO": (
        configured("dr_grpo", aggregation="token_mean"),
        configured("ppo"),
    ),
    "GSPO by token is GRPO": (
        configured("gspo", ratio_level="token", clip_low=0.2, clip_high=0.28, aggregation="token_mean"),
        configured("grpo"),
    ),
    "CISPO without bound is the policy gradient": (
        configured("cispo", weight_high=1e9),
        configured("policy_gradient", aggregation="token_mean"),
    ),
    "RLOO's loss is the policy gradient": (configured("rloo"), configured("policy_gradient")),
    "TIS with an infinite bound is decoupled PPO": (
        configured("tis", weight_high=1e9),
        configured("decoupled_ppo"),
    ),
    "weighted TOPR with weights of 1 is TOPR": (configured("weighted_topr"), configured("topr")),
    "masks without bounds mask nothing": (
        configured("grpo", mask_ratio_low=1e-9, mask_ratio_high=1e9),
        configured("grpo"),
    ),
}


@pytest.mark.parametrize("pair", same.values(), ids=same.keys())
def test_limits_in_which_two_algorithms_agree(pair: tuple[AlgorithmConfig, AlgorithmConfig]) -> None:
    case = Case(11)
    loss, gradient = case.gradient(pair[0])
    expected, expected_gradient = case.gradient(pair[1])
    assert loss == expected
    assert torch.equal(gradient, expected_gradient)


def test_decoupled_ppo_whose_proximal_policy_is_the_behaviour_policy_is_ppo() -> None:
    case = Case(12)
    case.proximal = case.behaviour.clone()
    loss, gradient = case.gradient(configured("decoupled_ppo"))
    expected, expected_gradient = case.gradient(configured("ppo"))
    assert loss == expected
    assert torch.equal(gradient, expected_gradient)


def test_before_any_update_tis_is_the_policy_gradient_with_a_truncated_weight() -> None:
    case = Case(13)
    case.proximal = case.logprobs.clone()
    _, gradient = case.gradient(configured("tis", weight_high=1.1))
    _, expected = case.gradient(configured("cispo", weight_high=1.1))
    torch.testing.assert_close(gradient, expected)


def test_topr_on_samples_that_are_all_good_is_the_uncorrected_policy_gradient() -> None:
    case = Case(14)
    case.advantages = case.advantages.abs()
    _, gradient = case.gradient(configured("topr"))
    _, expected = case.gradient(configured("policy_gradient", weight_low=1.0, weight_high=1.0))
    torch.testing.assert_close(gradient, expected)


def test_topr_on_samples_that_are_all_bad_is_truncated_importance_sampling_of_responses() -> None:
    case = Case(15)
    case.advantages = -case.advantages.abs()
    _, gradient = case.gradient(configured("topr"))
    _, expected = case.gradient(configured("policy_gradient", weight_high=1.0, ratio_level="sequence"))
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("name", types)
def test_enormous_ratios_stay_finite(name: AlgorithmType) -> None:
    case = Case(17)
    case.logprobs = case.logprobs + 500.0
    loss, gradient = case.gradient(configured(name))
    assert math.isfinite(loss)
    assert gradient.isfinite().all()
    assert log_ratios(case.logprobs, case.behaviour, case.mask).abs().max().item() == max_log_ratio


def test_what_a_loss_needs_and_does_not_get_is_an_error() -> None:
    tokens = tokens_of(Case())
    for algorithm in (
        configured("tis"),
        configured("grpo", kl_coefficient=0.1),
        configured("grpo", entropy_coefficient=0.1),
    ):
        with pytest.raises(ValueError, match="needs"):
            token_losses(tokens, algorithm)
