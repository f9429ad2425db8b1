"""What protection of slow prompts brings and costs: whether the longest prompts are ever trained, and the step time.

Pure. Durations belong to the prompt, so a rollout that went stale for being long is as long the next time.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Literal

from benchmarks.harness.figures import Figure, ratio_figure
from benchmarks.harness.variant import Variant
from benchmarks.scheduling.comparisons import Comparison
from benchmarks.scheduling.figures import orders_figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.harness.workload import SeededWorkload
    from benchmarks.scheduling.run_result import RunResult

share_of_longest = 0.05
least_trained: dict[float | Literal["auto"], float] = {1.0: 0.8, 2.0: 0.95}
"""Targets by alpha."""

_share_with_time = 0.75
_mean_seconds = 20.0
_median_seconds = _mean_seconds / 2**0.5
"""Of a lognormal whose coefficient of variation is 1."""


def prompts_with_time_to_be_trained(variant: Variant) -> int:
    """How many prompts, from the first on, are looked at: the last ones are still under way when the run ends."""
    return int(_share_with_time * variant.num_steps * variant.num_groups)


def longest_prompts(workload: SeededWorkload, num_prompts: int) -> list[int]:
    """Groups of the longest 5 % of the first `num_prompts` prompts."""
    by_length = sorted(range(num_prompts), key=lambda group: (-workload.num_tokens(group, 0), group))
    return by_length[: max(1, int(share_of_longest * num_prompts))]


def protection_comparisons(num_seeds: int) -> list[Comparison]:
    """With protection against without, alpha 1 and 2: 40 steps of 16 prompts x 2 on 32 slots."""
    return [
        Comparison(
            name=f"protection.alpha_{alpha:g}",
            baseline=_variant(alpha, protects=False),
            mode=_variant(alpha, protects=True),
            num_seeds=num_seeds,
        )
        for alpha in (1.0, 2.0)
    ]


def protection_figures(
    comparisons: Sequence[Comparison], outcomes: Mapping[str, Mapping[int, RunResult]]
) -> list[Figure]:
    """Per alpha the share of the longest prompts trained with and without protection, and the price in step time."""
    figures = []
    for comparison in comparisons:
        without, protected = (
            list(outcomes.get(variant.name, {}).values())
            for variant in (comparison.baseline, comparison.mode)
        )
        if without and protected:
            figures += _figures(comparison, without, protected)
    return figures


def _figures(
    comparison: Comparison, without: Sequence[RunResult], protected: Sequence[RunResult]
) -> list[Figure]:
    pairs = list(
        zip([found.seconds for found in protected], [found.seconds for found in without], strict=False)
    )
    return [
        Figure(
            name=f"{comparison.name}.longest_trained",
            value=round(fmean(found.long_trained for found in protected), 4),
            unit="share of the longest 5 % of prompts that were trained",
            target=least_trained[comparison.mode.alpha],
            ideal=1.0,
            num_draws=len(protected),
        ),
        Figure(
            name=f"{comparison.name}.unprotected.longest_trained",
            value=round(fmean(found.long_trained for found in without), 4),
            unit="share of the longest 5 % of prompts that were trained",
            num_draws=len(without),
        ),
        ratio_figure(
            f"{comparison.name}.step_time",
            "step time with protection / without",
            pairs,
            higher_is_better=False,
        ),
        orders_figure(comparison.mode, protected, f"{comparison.name}.orders"),
        orders_figure(comparison.baseline, without, f"{comparison.name}.unprotected.orders"),
    ]


def _variant(alpha: float, *, protects: bool) -> Variant:
    way = "protected" if protects else "unprotected"
    return Variant(
        name=f"{way}.alpha_{alpha:g}",
        num_groups=16,
        group_size=2,
        slots_per_worker=32,
        num_steps=40,
        alpha=alpha,
        protects=protects,
        median_seconds=_median_seconds,
        variation=1.0,
        longest_seconds=6 * _mean_seconds,
        belongs_to_prompt=True,
    )
