"""Settings of the demo's warm start; importing them needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartSettings:
    """How long and how fast; everything here is part of the cache key."""

    num_steps: int = 850
    batch_size: int = 32
    practice_fraction: float = 0.8
    """In this first part of the steps demonstrations go through all attempts: more arithmetic per token."""
    stop_after_hit: float = 0.82
    """Chance, after that, that a demonstration stops at an attempt that hits ..."""
    stop_after_miss: float = 0.68
    """... and at one that misses. Both are well above one half, so the greedy policy stops at once and noise alone
    does not change that. They differ because a model that never sees the mark matter forgets it where it decides to
    stop, and reinforcement learning then takes anything from 5 to 25 steps to find it again."""
    heed_answers: float = 0.3
    """Chance, after that, that a guess of a demonstrated game heeds the answers before it; the others are blind. What
    the model has learnt in the first part is still there, but it hardly acts on it."""
    work_out: float = 0.3
    """Chance, after that, that a demonstrated sum is worked out; the others are answered at once."""
    num_micro_batches: int = 2
    """Parts of a batch, by length, so that little is padded; their gradients add up."""
    learning_rate: float = 2.5e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1
    num_warmup_steps: int = 20
    decay_fraction: float = 0.9
    """The learning rate falls linearly to zero over this last part of the steps."""
    max_gradient_norm: float = 1.0
