"""AdamW as every engine has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollog.settings.training import OptimizerConfig


def adamw_settings(optimizer: OptimizerConfig) -> dict[str, Any]:
    """AdamW's arguments besides the learning rate, which every optimizer step sets."""
    return {
        "betas": optimizer.betas,
        "eps": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
    }


def new_adamw(parameters: Iterable[torch.Tensor], optimizer: OptimizerConfig) -> torch.optim.AdamW:
    """An optimizer of `parameters` without state."""
    return torch.optim.AdamW(parameters, lr=optimizer.learning_rate, **adamw_settings(optimizer), fused=True)


def set_adamw(adamw: Any, optimizer: OptimizerConfig, learning_rate: float) -> None:
    """Put these settings into `adamw`, or what an engine has wrapped around it, for its next step.

    Settings that a checkpoint has brought give way.
    """
    for group in adamw.param_groups:
        group.update(adamw_settings(optimizer) | {"lr": learning_rate})
