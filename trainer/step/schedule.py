"""The learning-rate schedule, counted in optimizer steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollog.settings.training import OptimizerConfig
    from trainer.step.ports import StepSettings


def next_rates(steps_taken: int, num_minibatches: int, settings: StepSettings) -> tuple[float, ...]:
    """The learning rates of the optimizer steps of the next training step."""
    return tuple(
        learning_rate(steps_taken + index, settings.num_optimizer_steps, settings.optimizer)
        for index in range(num_minibatches)
    )


def rate_change(steps_taken: int, before: StepSettings, after: StepSettings) -> tuple[float, float] | None:
    """The learning rate of the next optimizer step before and after settings change; None where it stays.

    The schedule is a function of the steps taken and of its length alone, so a longer run lifts the rate at once.
    """
    rates = [next_rates(steps_taken, 1, settings)[0] for settings in (before, after)]
    return None if rates[0] == rates[1] else (rates[0], rates[1])


def learning_rate(step: int, num_steps: int, optimizer: OptimizerConfig) -> float:
    """The learning rate of optimizer step `step` (from 0) of a run of `num_steps`.

    Linear warm-up to the highest rate, then a linear fall that reaches `final_fraction` of it at the last step and
    stays there.
    """
    if step < optimizer.warmup_steps:
        return optimizer.learning_rate * (step + 1) / optimizer.warmup_steps
    falling = max(num_steps - 1 - optimizer.warmup_steps, 1)
    progress = min((step - optimizer.warmup_steps) / falling, 1.0)
    return optimizer.learning_rate * (1.0 - progress * (1.0 - optimizer.final_fraction))
