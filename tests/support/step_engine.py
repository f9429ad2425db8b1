"""What a training step needs of an engine, around any policy: plain gradient descent, ranks as threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Barrier
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.settings.training import OptimizerConfig
    from trainer.step.ports import Float64Array


@dataclass(slots=True)
class DescentEngine:
    """A StepEngine on the CPU, alone or with others through `exchange`, that goes down the gradient without AdamW."""

    policy: nn.Module
    reference_policy: nn.Module | None = None
    rank: int = 0
    packing: bool = False
    exchange: Callable[[int, Float64Array], list[Float64Array]] = lambda _, numbers: [numbers]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def reference(self) -> nn.Module:
        assert self.reference_policy is not None, "nobody may ask for a reference here"
        return self.reference_policy

    def gather(self, numbers: Float64Array) -> list[Float64Array]:
        return self.exchange(self.rank, numbers)

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def apply_gradients(self, optimizer: OptimizerConfig, learning_rate: float) -> float:
        parameters = list(self.policy.parameters())
        norm = nn.utils.clip_grad_norm_(parameters, optimizer.max_gradient_norm)
        with torch.no_grad():
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=learning_rate)
        self.policy.zero_grad()
        return norm.item()


class ThreadsMeeting:
    """Where ranks, each a thread, exchange numbers."""

    def __init__(self, num_ranks: int) -> None:
        self._barrier = Barrier(num_ranks, timeout=60.0)
        self._numbers: dict[int, Float64Array] = {}

    def exchange(self, rank: int, numbers: Float64Array) -> list[Float64Array]:
        self._numbers[rank] = numbers
        self._barrier.wait()
        of_ranks = [self._numbers[other] for other in sorted(self._numbers)]
        self._barrier.wait()
        return of_ranks
