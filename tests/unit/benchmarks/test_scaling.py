"""What is told about more workers and one slow worker."""

from __future__ import annotations

import pytest

from benchmarks.scaling.figures import Load, dispatcher_figures, worker_figures
from benchmarks.scheduling.run_result import RunResult
from benchmarks.scheduling.slow_worker import slow_worker_comparisons, slow_worker_figures


def test_throughput_stands_beside_that_of_slots_which_are_never_empty() -> None:
    load = Load(num_tasks=900, seconds=10.0, dispatcher_cpu_seconds=0.9, linear=100.0)
    figures = {figure.name: figure for figure in worker_figures({4: [load], 64: [load]})}
    assert figures["scaling.workers_4.throughput"].value == 90.0
    assert figures["scaling.workers_4.throughput"].ideal == 100.0
    assert figures["scaling.workers_4.share_of_linear"].value == pytest.approx(0.9)
    assert figures["scaling.workers_64.dispatcher_cpu"].value == pytest.approx(1.0)
    assert figures["scaling.workers_64.dispatcher_cpu"].target == 0.5
    assert figures["scaling.workers_4.dispatcher_cpu"].target is None


def test_the_load_that_keeps_the_dispatcher_busy_is_told() -> None:
    load = Load(num_tasks=1000, seconds=2.0, dispatcher_cpu_seconds=0.5)
    figures = {figure.name: figure for figure in dispatcher_figures({32: [load]})}
    assert figures["scaling.answering_32.throughput"].value == 500.0
    assert figures["scaling.answering_32.dispatcher_share"].value == 0.25
    assert figures["scaling.answering_32.saturation"].value == 2000.0


def test_a_slow_worker_is_told_by_the_ratio_of_step_times_and_held_to_its_target_only_with_the_queue() -> (
    None
):
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
    assert slow_worker_figures(comparisons, {}) == []
