"""What is said about one slow worker, and about redundant prompts in the steady state."""

from __future__ import annotations

import pytest

from benchmarks.scheduling.ideal import has_ideal
from benchmarks.scheduling.run_result import RunResult
from benchmarks.scheduling.slow_worker import slow_worker_comparisons, slow_worker_figures
from benchmarks.scheduling.steady_redundancy import steady_redundancy_comparisons, steady_redundancy_figures


def test_a_slow_worker_has_a_target_only_with_queue_and_redundancy() -> None:
    comparisons = slow_worker_comparisons(1)
    outcomes = {
        variant.name: {0: RunResult(seconds=seconds, ideal_seconds=0.0, num_tasks=1)}
        for each in comparisons
        for variant, seconds in ((each.baseline, 20.0), (each.mode, 25.0))
    }
    figures = {figure.name: figure for figure in slow_worker_figures(comparisons, outcomes)}
    assert {figure.value for figure in figures.values()} == {1.25}
    assert figures["slow_worker.queue.step_time"].target == 1.3
    assert figures["slow_worker.static.step_time"].target is None
    assert figures["slow_worker.queue_without_redundancy.step_time"].target is None
    assert slow_worker_figures(comparisons, {}) == []


def test_redundancy_is_compared_by_step_times_and_by_what_it_orders() -> None:
    comparisons = steady_redundancy_comparisons(1)
    outcomes = {
        variant.name: {0: RunResult(seconds=seconds, ideal_seconds=0.0, num_tasks=num_tasks)}
        for each in comparisons
        for variant, seconds, num_tasks in ((each.baseline, 60.0, 960), (each.mode, 40.0, 1600))
    }
    figures = {figure.name: figure for figure in steady_redundancy_figures(comparisons, outcomes)}
    assert figures["scheduling.steady_redundancy.alpha_0.slots_64.speedup"].value == pytest.approx(1.5)
    assert figures["scheduling.steady.alpha_1.in_flight_24.slots_192.orders"].value == 2.5
    assert figures["scheduling.steady.alpha_1.in_flight_8.slots_64.orders"].value == 1.5
    assert steady_redundancy_figures(comparisons, {}) == []
    assert not any(has_ideal(variant) for each in comparisons for variant in (each.baseline, each.mode))
