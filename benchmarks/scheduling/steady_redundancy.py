"""What redundant prompts bring in the steady state: the mean step time over several steps, with and without them.

Pure. The first batch alone flatters redundancy, because nothing is left over from a step before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness.figures import ratio_figure
from benchmarks.harness.variant import Variant
from benchmarks.scheduling.comparisons import Comparison
from benchmarks.scheduling.figures import orders_figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.harness.figures import Figure
    from benchmarks.scheduling.run_result import RunResult

num_steps = 10
_redundant_groups = 16
_num_slots = (64, 192)


def steady_redundancy_comparisons(num_seeds: int, *, steps: int = num_steps) -> list[Comparison]:
    """16 redundant prompts beside the 8 of a batch against none, at alpha 0 and 1, on few slots and many."""
    return [
        Comparison(
            name=f"steady_redundancy.alpha_{alpha:g}.slots_{num_slots}",
            baseline=_variant(alpha, _num_slots[0], 0, steps),
            mode=_variant(alpha, num_slots, _redundant_groups, steps),
            num_seeds=num_seeds,
        )
        for alpha in (0.0, 1.0)
        for num_slots in _num_slots
    ]


def steady_redundancy_figures(
    comparisons: Sequence[Comparison], outcomes: Mapping[str, Mapping[int, RunResult]]
) -> list[Figure]:
    """Per comparison the ratio of the step times, and the rollouts that both order for each one they train."""
    figures: dict[str, Figure] = {}
    for comparison in comparisons:
        without, redundant = (
            outcomes.get(variant.name, {}) for variant in (comparison.baseline, comparison.mode)
        )
        both = sorted(without.keys() & redundant.keys())
        if not both:
            continue
        pairs = [(without[number].seconds, redundant[number].seconds) for number in both]
        unit = f"times as fast as {comparison.baseline.name}, mean of the steps after the first"
        for figure in (
            ratio_figure(f"scheduling.{comparison.name}.speedup", unit, pairs),
            orders_figure(comparison.mode, [redundant[number] for number in both]),
            orders_figure(comparison.baseline, [without[number] for number in both]),
        ):
            figures[figure.name] = figure
    return list(figures.values())


def _variant(alpha: float, num_slots: int, redundant_groups: int, steps: int) -> Variant:
    in_flight = 8 + redundant_groups
    return Variant(
        name=f"steady.alpha_{alpha:g}.in_flight_{in_flight}.slots_{num_slots}",
        num_groups=8,
        group_size=8,
        slots_per_worker=num_slots,
        redundant_groups=redundant_groups,
        pass_rate=0.7,
        prefetch_tasks=16,
        num_steps=steps,
        alpha=alpha,
    )
