"""Configuration of the trainer: algorithm, optimizer, engine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rollog.config import Section


class AlgorithmConfig(Section):
    """Advantages and loss."""

    type: Literal["grpo"] = "grpo"
    """Loss and advantage together, by their published name."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The ratio to the behaviour policy is clipped below at 1 - clip_low."""
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    """... and above at 1 + clip_high."""
    normalize_std: bool = True
    """Whether advantages are divided by the group's standard deviation."""
    aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    """How per-token losses become one number."""


class OptimizerConfig(Section):
    """AdamW and its learning-rate schedule, counted in optimizer steps."""

    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    """Highest learning rate."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The learning rate falls linearly to this fraction of the highest at the run's last step."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps of linear warm-up."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the first and second moment."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay."""
    max_gradient_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are scaled down to this norm."""


class TrainerConfig(Section):
    """The training engine."""

    engine: Literal["deepspeed"] = "deepspeed"
    """Training engine."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """DeepSpeed ZeRO stage."""
    num_minibatches: Annotated[int, Field(ge=1)] = 4
    """Optimizer steps per training step."""
    micro_batch_tokens: Annotated[int, Field(ge=1)] = 16384
    """Most tokens (padding included) in one forward pass."""
    num_threads: Annotated[int, Field(ge=1)] = 1
    """CPU threads of the trainer."""
    checkpoint_every_steps: Annotated[int, Field(ge=1)] = 10
    """Training steps between checkpoints."""
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    """Newest complete checkpoints to keep."""
    allow_rebase: bool = False
    """Whether a trainer that cannot redo the newest version bit for bit goes on from the weights that it has, under a
    new version and a `rebase` record, instead of stopping. The new version counts towards `run.num_steps`."""
    verdicts_interval_seconds: Annotated[float, Field(ge=0)] = 0.05
    """Shortest time between two `verdicts` records."""
    transaction_timeout_seconds: Annotated[float, Field(gt=0)] = 15.0
    """After this the broker aborts an open transaction."""
