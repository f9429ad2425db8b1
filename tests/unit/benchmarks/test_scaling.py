"""What is said about more workers."""

from __future__ import annotations

import pytest

from benchmarks.scaling.figures import Load, dispatcher_figures, worker_figures


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
    figures = {figure.name: figure for figure in dispatcher_figures({"scaling.answering_32": [load]})}
    assert figures["scaling.answering_32.throughput"].value == 500.0
    assert figures["scaling.answering_32.dispatcher_share"].value == 0.25
    assert figures["scaling.answering_32.saturation"].value == 2000.0
