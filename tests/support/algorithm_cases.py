"""Random minibatches, and any algorithm on them: its loss and gradient, and those of the slow reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import torch

from rollog.settings.training import AlgorithmConfig, AlgorithmType
from support.loss_reference import Response, reference_loss
from trainer.step.algorithms import extreme_tokens, token_losses
from trainer.step.losses.aggregation import Denominators, aggregate
from trainer.step.losses.policy import Tokens

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
