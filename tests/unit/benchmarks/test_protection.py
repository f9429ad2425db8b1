"""Which prompts are the longest, and what is said about them."""

from __future__ import annotations

from benchmarks.harness.workload import SeededWorkload
from benchmarks.scheduling.protection import (
    longest_prompts,
    prompts_with_time_to_be_trained,
    protection_comparisons,
    protection_figures,
)
from benchmarks.scheduling.run_result import RunResult


def a_result(seconds: float, *, long_trained: float) -> RunResult:
    return RunResult(seconds=seconds, ideal_seconds=0.0, num_tasks=1920, long_trained=long_trained)


def test_durations_may_belong_to_the_prompt() -> None:
    workload = SeededWorkload(seed=0, number=0, belongs_to_prompt=True)
    assert len({workload.seconds(3, replica) for replica in range(8)}) == 1
    assert len({workload.seconds(group, 0) for group in range(8)}) > 1


def test_the_longest_prompts_are_one_in_twenty_and_none_of_the_others_is_longer() -> None:
    workload = SeededWorkload(seed=0, number=0, belongs_to_prompt=True)
    longest = longest_prompts(workload, 200)
    assert len(longest) == 10
    others = set(range(200)) - set(longest)
    assert min(workload.seconds(group, 0) for group in longest) >= max(
        workload.seconds(group, 0) for group in others
    )


def test_prompts_of_the_last_quarter_of_a_run_are_not_looked_at() -> None:
    (first, _) = protection_comparisons(10)
    assert prompts_with_time_to_be_trained(first.mode) == 480


def test_shares_and_the_price_in_step_time_are_told_by_alpha() -> None:
    comparisons = protection_comparisons(10)
    outcomes = {
        comparisons[0].baseline.name: {0: a_result(20.0, long_trained=0.4)},
        comparisons[0].mode.name: {0: a_result(25.0, long_trained=0.9)},
    }
    figures = {figure.name: figure for figure in protection_figures(comparisons, outcomes)}
    assert figures.keys() == {
        "protection.alpha_1.longest_trained",
        "protection.alpha_1.unprotected.longest_trained",
        "protection.alpha_1.step_time",
        "protection.alpha_1.orders",
        "protection.alpha_1.unprotected.orders",
    }
    assert figures["protection.alpha_1.orders"].value == 1.5
    assert figures["protection.alpha_1.longest_trained"].target == 0.8
    assert figures["protection.alpha_1.step_time"].value == 1.25
    assert not figures["protection.alpha_1.step_time"].higher_is_better
