"""What is said of the cost of a task, and that 256 workers wait for no task as long as nobody lacks a core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.dispatcher.loads import Cost, busy_slots_figures, cost_figures, fleet, fleet_figures
from benchmarks.dispatcher.measure import evaluation_reading_ms, fleet_answer, measure_in_memory


def test_the_cost_of_a_task_is_processor_time_over_tasks() -> None:
    cost = Cost(num_tasks=2000, seconds=4.0, cpu_seconds=0.5)
    figures = {figure.name: figure for figure in cost_figures("memory", {"busy": [cost], "left_out": []})}
    assert set(figures) == {"dispatcher.memory.busy.cpu_ms", "dispatcher.memory.busy.throughput"}
    assert figures["dispatcher.memory.busy.cpu_ms"].value == 0.25
    assert figures["dispatcher.memory.busy.cpu_ms"].target == 0.2
    assert figures["dispatcher.memory.busy.throughput"].value == 500.0


@pytest.mark.parametrize(("total_cpu_seconds", "ideal", "share"), [(10.0, 256.0, 0.75), (40.0, 96.0, 2.0)])
def test_the_ideal_of_the_fleet_is_the_smaller_of_what_slots_and_cores_allow(
    total_cpu_seconds: float, ideal: float, share: float
) -> None:
    cost = Cost(num_tasks=1920, seconds=10.0, cpu_seconds=0.5, total_cpu_seconds=total_cpu_seconds)
    figures = {figure.name: figure for figure in fleet_figures([cost], num_cores=2)}
    assert figures["dispatcher.fleet_256.throughput"].ideal == ideal
    assert figures["dispatcher.fleet_256.share"].value == share


@pytest.mark.parametrize(("prefetch_tasks", "are_busy"), [(1, True), (0, False)])
def test_one_prefetched_task_hides_the_pauses_from_256_workers(
    prefetch_tasks: int, *, are_busy: bool
) -> None:
    """In counted time: what the machine does besides changes nothing."""
    load = replace(fleet, prefetch_tasks=prefetch_tasks)
    cost = measure_in_memory(load, 0, 2.0, answer=replace(fleet_answer, num_tokens=1), settling=1.5)
    (share,) = busy_slots_figures([cost])
    assert cost.num_tasks >= fleet.num_workers
    assert (share.value > 0.95) is are_busy, share


def test_an_evaluation_that_can_be_read_takes_time() -> None:
    assert evaluation_reading_ms(10, num_reads=50) > 0
