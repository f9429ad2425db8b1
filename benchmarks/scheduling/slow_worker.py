"""What one slow worker costs: the step time of a run with it over that of the same run without it.

Pure. Seven workers are equally fast; in one of the two runs there is an eighth that takes 20 times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness.figures import ratio_figure
from benchmarks.harness.variant import Scheduling, Variant
from benchmarks.scheduling.comparisons import Comparison

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.harness.figures import Figure
    from benchmarks.scheduling.run_result import RunResult

slowness = 20.0
most_times_as_long = 1.3
"""Target: the step time with the slow worker over that without it, with queue scheduling."""

num_steps = 20
_num_workers = 7
_redundant_replicas = 2
_ways: tuple[Scheduling, ...] = ("queue", "static", "batch")


def slow_worker_comparisons(num_seeds: int, *, steps: int = num_steps) -> list[Comparison]:
    """With the slow worker against without it, for each way of scheduling, and for the queue without redundancy."""
    ways = [*((scheduling, _redundant_replicas) for scheduling in _ways), (_ways[0], 0)]
    return [
        Comparison(
            name=f"slow_worker.{_way_name(scheduling, redundant_replicas)}",
            baseline=_variant(scheduling, redundant_replicas, is_slow=False, steps=steps),
            mode=_variant(scheduling, redundant_replicas, is_slow=True, steps=steps),
            num_seeds=num_seeds,
        )
        for scheduling, redundant_replicas in ways
    ]


def slow_worker_figures(
    comparisons: Sequence[Comparison], outcomes: Mapping[str, Mapping[int, RunResult]]
) -> list[Figure]:
    """Per way of scheduling the ratio of the step times."""
    figures = []
    for comparison in comparisons:
        without, slow = (outcomes.get(variant.name, {}) for variant in (comparison.baseline, comparison.mode))
        pairs = [
            (slow[number].seconds, without[number].seconds) for number in sorted(slow.keys() & without.keys())
        ]
        if pairs:
            figures.append(_figure(comparison, pairs))
    return figures


def _figure(comparison: Comparison, pairs: Sequence[tuple[float, float]]) -> Figure:
    has_target = comparison.mode.scheduling == "queue" and comparison.mode.redundant_replicas > 0
    return ratio_figure(
        f"{comparison.name}.step_time",
        "step time with a worker 20 times slower / without it",
        pairs,
        target=most_times_as_long if has_target else None,
        ideal=1.0,
        higher_is_better=False,
    )


def _way_name(scheduling: Scheduling, redundant_replicas: int) -> str:
    return scheduling if redundant_replicas else f"{scheduling}_without_redundancy"


def _variant(scheduling: Scheduling, redundant_replicas: int, *, is_slow: bool, steps: int) -> Variant:
    way = _way_name(scheduling, redundant_replicas)
    return Variant(
        name=f"slow_worker.{way}.{'with' if is_slow else 'without'}",
        num_groups=8,
        group_size=4,
        num_workers=_num_workers + is_slow,
        slots_per_worker=8,
        scheduling=scheduling,
        redundant_replicas=redundant_replicas,
        last_worker_slowness=slowness if is_slow else 1.0,
        prefetch_tasks=0,
        num_steps=steps,
        alpha=1.0,
        longest_seconds=80.0,
    )
