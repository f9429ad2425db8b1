"""Figures of the accuracy experiment from known curves."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.measure import Curve, curve_of, figures_of
from rollog.kernel.errors import DataError
from schemas import StepTimings


def timings(wait_seconds: float, train_seconds: float) -> StepTimings:
    return StepTimings(
        wait_seconds=wait_seconds,
        train_seconds=train_seconds,
        publish_seconds=0.0,
        commit_seconds=0.0,
        checkpoint_seconds=0.0,
    )


def curve(step_seconds: float, reached_at: int) -> Curve:
    accuracy = {version: 0.95 if version >= reached_at else 0.5 for version in range(0, 11, 2)}
    return Curve(seconds=tuple(step_seconds * version for version in range(11)), accuracy=accuracy)


def test_the_start_of_the_engines_is_left_out() -> None:
    found = curve_of([timings(30.0, 1.0), timings(0.5, 1.0)], {0: 0.4, 2: 0.93})
    assert found.seconds == (0.0, 1.0, 2.5)
    assert found.step_seconds == 1.25
    assert found.seconds_to(0.92) == 2.5
    assert found.seconds_to(0.94) is None


def test_each_alpha_is_compared_with_alpha_zero_of_the_same_seed() -> None:
    curves = {0.0: [curve(2.0, 4), curve(2.0, 6)], 1.0: [curve(1.0, 4), curve(1.0, 8)]}
    found = {each.name: each.value for each in figures_of(curves, 0.9)}
    assert found["accuracy.alpha_0.seconds_to_target"] == 10.0
    assert found["accuracy.alpha_1.seconds_to_target"] == 6.0
    assert found["accuracy.alpha_1.speedup"] == pytest.approx(20 / 12)
    assert found["accuracy.alpha_1.step_speedup"] == pytest.approx(2.0)


def test_a_run_that_never_gets_there_is_an_error_that_names_it() -> None:
    curves = {0.0: [curve(2.0, 4)], 1.0: [curve(1.0, 12)]}
    with pytest.raises(DataError, match=r"alpha 1 did not reach 0.9 within 10 steps.*--target"):
        figures_of(curves, 0.9)
