"""Every algorithm: against the slow reference, by finite differences, and in the limits where two of them agree."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.loss_reference import Response, reference_loss

from rollog.settings.training import AlgorithmConfig, AlgorithmType
from trainer.step.algorithms import extreme_tokens, token_losses
from trainer.step.losses.aggregation import Denominators, aggregate
from trainer.step.losses.penalties import divergences, weighted_divergences
from trainer.step.losses.policy import (
    Tokens,
    clipped_losses,
    decoupled_losses,
    topr_losses,
    weighted_losses,
)
from trainer.step.losses.ratios import at_level, log_ratios, max_log_ratio

if TYPE_CHECKING:
    from torch import Tensor

types: list[AlgorithmType] = [*get_args(AlgorithmType)]
budget = 8


class Case:
    """Random log-probabilities of one minibatch; the first sample is masked as a whole."""

    def __init__(self, seed: int = 0, *, rows: int = 5, width: int = 4, spread: float = 0.4) -> None:
        draw = torch.Generator().manual_seed(seed)

        def logprobs() -> Tensor:
            return -2 + spread * torch.randn(rows, width, generator=draw, dtype=torch.float64)

        self.logprobs, self.behaviour, self.proximal, self.reference = (logprobs() for _ in range(4))
        self.entropies = torch.rand(rows, width, generator=draw, dtype=torch.float64)
        self.advantages = torch.randn(rows, generator=draw, dtype=torch.float64)
        self.mask = torch.rand(rows, width, generator=draw) < 0.7
        self.mask[0] = False

    @property
    def denominators(self) -> Denominators:
        return Denominators(
            num_tokens=int(self.mask.sum()),
            num_samples=int(self.mask.any(dim=1).sum()),
            tokens_per_sample=budget,
        )

    def loss(self, algorithm: AlgorithmConfig, logprobs: Tensor, rows: slice = slice(None)) -> Tensor:
        mask = self.mask[rows]
        tokens = Tokens(
            logprobs_BR=logprobs[rows],
            behaviour_logprobs_BR=self.behaviour[rows],
            advantages_BR=self.advantages[rows, None],
            mask_BR=mask,
        )
        losses = token_losses(
            tokens,
            algorithm,
            extreme_BR=extreme_tokens(tokens.log_ratios(), mask, algorithm),
            proximal_logprobs_BR=self.proximal[rows],
            reference_logprobs_BR=self.reference[rows],
            entropies_BR=self.entropies[rows],
        )
        return aggregate(losses.losses_BR, mask, algorithm.aggregation, self.denominators)

    def gradient(self, algorithm: AlgorithmConfig) -> tuple[float, Tensor]:
        """The loss and its gradient with respect to log pi."""
        logprobs = self.logprobs.clone().requires_grad_()
        loss = self.loss(algorithm, logprobs)
        loss.backward()  # type: ignore[no-untyped-call]
        assert logprobs.grad is not None
        return loss.item(), logprobs.grad

    def reference_gradient(self, algorithm: AlgorithmConfig) -> tuple[float, Tensor]:
        logprobs = self.logprobs.clone().requires_grad_()
        responses = [
            Response(
                logprobs=list(logprobs[row][kept]),
                behaviour=self.behaviour[row][kept].tolist(),
                advantage=self.advantages[row].item(),
                proximal=self.proximal[row][kept].tolist(),
                reference=self.reference[row][kept].tolist(),
                entropies=list(self.entropies[row][kept]),
            )
            for row, kept in enumerate(self.mask)
        ]
        loss = reference_loss(algorithm, responses) + 0.0 * logprobs.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        assert logprobs.grad is not None
        return loss.item(), logprobs.grad


def configured(name: AlgorithmType, **changes: Any) -> AlgorithmConfig:
    return AlgorithmConfig(**{"type": name, "max_response_tokens": budget} | changes)


def tokens_of(case: Case, **changes: Tensor) -> Tokens:
    values = {
        "logprobs_BR": case.logprobs,
        "behaviour_logprobs_BR": case.behaviour,
        "advantages_BR": case.advantages[:, None],
        "mask_BR": case.mask,
    }
    return Tokens(**(values | changes))


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
