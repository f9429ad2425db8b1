"""The loss of a value head."""
# ruff: noqa: N815 - fields that are tensors carry shape suffixes

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Values:
    """What a value loss is a function of: V, which carries the gradient; R, what V should have been; V before the step.

    What masked positions hold does not matter.
    """

    values_BR: Tensor
    returns_BR: Tensor
    old_values_BR: Tensor


def value_losses(values: Values, mask_BR: Tensor, *, clip: float | None = None) -> Tensor:
    """Half the squared error of each value, 0 at masked positions.

        l = 1/2 max((V - R)^2, (V_old + [V - V_old]_(-clip)^(+clip) - R)^2)

    The clipped form is that of the code published with PPO (https://github.com/openai/baselines, ppo2); without `clip`
    l = 1/2 (V - R)^2.

    Args:
        values: V, R and V_old.
        mask_BR: bool, True where a token is trained.
        clip: a value gains nothing by moving further than this; None is no bound.
    """
    values_BR, returns_BR, old_BR = (
        torch.where(mask_BR, tensor_BR, 0.0)
        for tensor_BR in (values.values_BR, values.returns_BR.detach(), values.old_values_BR.detach())
    )
    errors_BR = (values_BR - returns_BR).square()
    if clip is not None:
        clipped_BR = old_BR + (values_BR - old_BR).clamp(-clip, clip)
        errors_BR = torch.maximum(errors_BR, (clipped_BR - returns_BR).square())
    return errors_BR / 2
