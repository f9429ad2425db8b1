"""AdamW as every engine has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollog.settings.training import OptimizerConfig


def adamw_settings(optimizer: OptimizerConfig) -> dict[str, Any]:
    """What AdamW is told besides the learning rate, which every optimizer step sets."""
    return {
        "betas": optimizer.betas,
        "eps": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
    }
