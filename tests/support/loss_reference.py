"""Every loss once more, one token after the other, straight from the formulas: what the tensors are held against.

Log-probabilities of the policy are scalars that carry a gradient; everything else is a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rollog.settings.training import AlgorithmConfig


@dataclass(frozen=True, kw_only=True)
class Response:
    """The trained tokens of one sample."""

    logprobs: Sequence[Tensor]
    behaviour: Sequence[float]
    advantage: float
    proximal: Sequence[float] = ()
    reference: Sequence[float] = ()
    entropies: Sequence[Tensor] = ()


def reference_loss(algorithm: AlgorithmConfig, responses: Sequence[Response]) -> Tensor:
    """The loss of one minibatch."""
    kept = [response for response in responses if len(response.logprobs)]
    losses = [token_losses(algorithm, response) for response in kept]
    zero = torch.zeros((), dtype=torch.float64)
    if not kept:
        return zero
    if algorithm.aggregation == "token_mean":
        return sum((loss for of_one in losses for loss in of_one), zero) / sum(map(len, losses))
    if algorithm.aggregation == "sequence_mean":
        return sum((sum(of_one, zero) / len(of_one) for of_one in losses), zero) / len(losses)
    assert algorithm.max_response_tokens is not None
    return sum((sum(of_one, zero) / algorithm.max_response_tokens for of_one in losses), zero) / len(losses)


def token_losses(algorithm: AlgorithmConfig, response: Response) -> list[Tensor]:
    """The loss of each token of one response."""
    found = []
    for t, logprob in enumerate(response.logprobs):
        loss = policy_loss(algorithm, response, t)
        if is_extreme(algorithm, response, t):
            loss = loss * 0.0
        if algorithm.kl_coefficient > 0 and algorithm.kl_in == "loss":
            d = logprob - response.reference[t]
            estimates = {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) - 1 + d}
            weight = torch.ones((), dtype=torch.float64)
            if algorithm.kl_weight == "ratio":
                weight = torch.exp(logprob - response.behaviour[t])
            if algorithm.kl_estimator == "k2":
                weight = weight.detach()
            loss = loss + algorithm.kl_coefficient * weight * estimates[algorithm.kl_estimator]
        if algorithm.entropy_coefficient > 0:
            loss = loss - algorithm.entropy_coefficient * response.entropies[t]
        found.append(loss)
    return found


def policy_loss(algorithm: AlgorithmConfig, response: Response, t: int) -> Tensor:
    """The policy loss of token `t`."""
    advantage, logprob = response.advantage, response.logprobs[t]
    current = list(response.logprobs)
    numbers = [each.item() for each in current]
    if algorithm.type in {"decoupled_ppo", "tis"}:
        weight = cut(
            ratio(algorithm, response.proximal, response.behaviour, t),
            algorithm.weight_low,
            algorithm.weight_high,
        )
        return weight * surrogate(algorithm, ratio(algorithm, current, response.proximal, t), advantage)
    if algorithm.type in {"policy_gradient", "rloo", "cispo", "topr", "weighted_topr"}:
        weight = cut(
            ratio(algorithm, numbers, response.behaviour, t), algorithm.weight_low, algorithm.weight_high
        )
        if algorithm.type in {"topr", "weighted_topr"} and advantage >= 0:
            weight = torch.ones(())
        if algorithm.type == "weighted_topr":
            weight = weight * (algorithm.positive_weight if advantage >= 0 else algorithm.negative_weight)
        return -weight * advantage * logprob
    return surrogate(algorithm, ratio(algorithm, current, response.behaviour, t), advantage)


def surrogate(algorithm: AlgorithmConfig, r: Tensor, advantage: float) -> Tensor:
    """PPO's clipped surrogate of one ratio."""
    clipped = min(max(r, torch.tensor(1 - algorithm.clip_low)), torch.tensor(1 + algorithm.clip_high))
    objective = min(r * advantage, clipped * advantage)
    if algorithm.dual_clip is not None and advantage < 0:
        objective = max(objective, torch.tensor(algorithm.dual_clip * advantage))
    return -objective


def ratio(
    algorithm: AlgorithmConfig, above: Sequence[Tensor | float], below: Sequence[float], t: int
) -> Tensor:
    """The ratio of two policies that token `t` is judged by."""
    differences = [torch.as_tensor(here) - there for here, there in zip(above, below, strict=True)]
    if algorithm.ratio_level == "token":
        return torch.exp(differences[t])
    product = torch.exp(torch.stack(differences).sum())
    return product if algorithm.ratio_level == "sequence" else product ** (1 / len(differences))


def cut(value: Tensor, low: float, high: float | None) -> Tensor:
    return torch.clamp(value, low, math.inf if high is None else high)


def is_extreme(algorithm: AlgorithmConfig, response: Response, t: int) -> bool:
    """Whether token `t` is left out for its ratio, or that of its response."""
    ratios = [
        math.exp(here.item() - there)
        for here, there in zip(response.logprobs, response.behaviour, strict=True)
    ]
    judged = ratios[t] if algorithm.mask_level == "token" else math.prod(ratios) ** (1 / len(ratios))
    is_low = algorithm.mask_ratio_low is not None and judged < algorithm.mask_ratio_low
    return is_low or (algorithm.mask_ratio_high is not None and judged > algorithm.mask_ratio_high)
