"""The learning-rate schedule."""

from __future__ import annotations

import pytest

from rollog.settings.training import OptimizerConfig
from trainer.step.schedule import learning_rate


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
