"""The learning-rate schedule."""

from __future__ import annotations

import pytest

from rollog.settings.training import AlgorithmConfig, OptimizerConfig
from trainer.step.ports import StepSettings
from trainer.step.schedule import learning_rate, rate_change


def test_the_rate_falls_linearly_to_its_final_fraction_at_the_last_step_and_stays() -> None:
    optimizer = OptimizerConfig(learning_rate=1.0, final_fraction=0.1)
    rates = [learning_rate(step, 4, optimizer) for step in range(6)]
    assert rates == pytest.approx([1.0, 0.7, 0.4, 0.1, 0.1, 0.1])


def test_warm_up_rises_linearly_to_the_highest_rate() -> None:
    optimizer = OptimizerConfig(learning_rate=1.0, final_fraction=0.0, warmup_steps=2)
    assert [learning_rate(step, 5, optimizer) for step in range(5)] == pytest.approx(
        [0.5, 1.0, 1.0, 0.5, 0.0]
    )


@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_runs_of_one_step_have_a_rate(warmup: int) -> None:
    assert learning_rate(0, 1, OptimizerConfig(learning_rate=1.0, warmup_steps=warmup)) > 0


def of_length(num_steps: int, **optimizer: float) -> StepSettings:
    return StepSettings(
        algorithm=AlgorithmConfig(),
        optimizer=OptimizerConfig(**{"learning_rate": 1.0, "final_fraction": 0.0} | optimizer),
        num_optimizer_steps=num_steps,
    )


def test_a_longer_run_lifts_the_rate_of_the_next_step() -> None:
    assert rate_change(4, of_length(5), of_length(9)) == pytest.approx((0.0, 0.5))
    assert rate_change(4, of_length(9), of_length(9)) is None
    assert rate_change(0, of_length(5), of_length(9)) is None


def test_another_rate_and_fraction_keep_it_where_it_was() -> None:
    """By the formula of docs/replay.md: n = 4 steps taken, a rate of 0.2 now and of 0.05 at the end of N = 9."""
    now, at_end, progress = 0.2, 0.05, 4 / 8
    highest = (now - at_end * progress) / (1 - progress)
    before = of_length(5, final_fraction=now)
    after = of_length(9, learning_rate=highest, final_fraction=at_end / highest)
    change = rate_change(4, before, after) or (now, now)
    assert change == pytest.approx((now, now))
    assert learning_rate(8, 9, after.optimizer) == pytest.approx(at_end)
