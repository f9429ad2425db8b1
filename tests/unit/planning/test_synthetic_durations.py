"""Durations for a mean and a maximum."""

from __future__ import annotations

from statistics import fmean

import pytest

from rollog.planning.synthetic_durations import lognormal_durations


@pytest.mark.parametrize("longest", [20.0, 20.5, 60.0, 160.0, 4000.0, 40000.0])
def test_the_mean_is_met_and_nothing_is_longer_than_the_longest(longest: float) -> None:
    durations = lognormal_durations(20.0, longest)

    assert fmean(durations) == pytest.approx(20.0, rel=1e-6)
    assert min(durations) > 0
    assert max(durations) <= longest


@pytest.mark.parametrize("longest", [30.0, 60.0, 160.0, 400.0])
def test_about_one_in_a_thousand_is_the_longest(longest: float) -> None:
    durations = lognormal_durations(20.0, longest)

    assert 0.0005 <= sum(each > 0.98 * longest for each in durations) / len(durations) <= 0.005


def test_the_order_is_that_of_the_seed() -> None:
    assert lognormal_durations(20.0, 160.0) == lognormal_durations(20.0, 160.0)
    assert lognormal_durations(20.0, 160.0) != lognormal_durations(20.0, 160.0, seed=1)
