"""The workload of a seed."""

from __future__ import annotations

from statistics import fmean, median, pstdev

import pytest

from benchmarks.harness.workload import SeededWorkload, tokens_per_second


def durations(workload: SeededWorkload, num_groups: int = 400) -> list[float]:
    return [workload.seconds(group, replica) for group in range(num_groups) for replica in range(8)]


def test_the_same_rollout_always_takes_the_same_time_and_other_numbers_other_times() -> None:
    assert durations(SeededWorkload(seed=1, number=2)) == durations(SeededWorkload(seed=1, number=2))
    others = [SeededWorkload(seed=2, number=2), SeededWorkload(seed=1, number=3)]
    assert all(durations(other) != durations(SeededWorkload(seed=1, number=2)) for other in others)


def test_durations_have_the_median_and_the_variation_asked_for() -> None:
    found = durations(SeededWorkload(seed=0, number=0))
    assert median(found) == pytest.approx(20.0, rel=0.05)
    assert pstdev(found) / fmean(found) == pytest.approx(0.5, rel=0.05)


def test_durations_are_whole_tokens_and_capped() -> None:
    workload = SeededWorkload(seed=0, number=0, longest_seconds=30.0)
    assert max(durations(workload)) == 30.0
    assert workload.num_tokens(3, 4) == workload.seconds(3, 4) * tokens_per_second


@pytest.mark.parametrize("pass_rate", [0.0, 0.3, 1.0])
def test_as_many_groups_pass_as_the_rate_says(pass_rate: float) -> None:
    workload = SeededWorkload(seed=0, number=0, pass_rate=pass_rate)
    assert fmean(workload.passes(group) for group in range(4000)) == pytest.approx(pass_rate, abs=0.03)
