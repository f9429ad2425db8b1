"""The rule of ROLL Flash beside rollog's on the same workloads: prompts evicted, rollouts begun, time of a step.

Pure. Both rules are played in discrete events (`evicting_model.py`, `ideal_training.py`) with the devices and durations
of the asynchrony part, so no broker and no clock is in the figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, mean_figure
from benchmarks.scheduling.asynchrony import training_comparisons
from benchmarks.scheduling.evicting_model import EvictingModel
from benchmarks.scheduling.ideal import training_run
from benchmarks.scheduling.ideal_training import TrainingModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.harness.variant import Variant
    from benchmarks.harness.workload import SeededWorkload

alphas = (0.5, 1.0, 2.0, 4.0)
num_steps = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRun:
    """What one rule makes of one workload.

    `evicted` prompts lost all that they had, for each prompt trained; `begun` are rollouts begun for each one trained.
    """

    step_seconds: float
    evicted: float
    begun: float


def played(model: TrainingModel, variant: Variant) -> PlayedRun:
    """Play a model of that variant to its end."""
    ends = model.step_ends()
    num_prompts = variant.num_steps * variant.num_groups
    return PlayedRun(
        step_seconds=(ends[-1] - ends[0]) / (len(ends) - 1),
        evicted=model.num_emptied / num_prompts,
        begun=model.num_begun / (num_prompts * variant.group_size),
    )


def eviction_figures(num_seeds: int, seed: int) -> list[Figure]:
    """Per alpha what both rules make of workloads 0 to `num_seeds` - 1 of `seed`, and the ratio of their step times."""
    return [
        figure
        for variant in _variants()
        for figure in _figures_of(variant, _played(variant, num_seeds, seed))
    ]


def _variants() -> list[Variant]:
    modes = (each.mode for each in training_comparisons(1, steps=num_steps))
    by_alpha = {mode.alpha: mode for mode in modes}
    return [by_alpha[alpha] for alpha in alphas]


def _played(variant: Variant, num_seeds: int, seed: int) -> list[tuple[PlayedRun, PlayedRun]]:
    return [_pair(variant, variant.workload(seed, number)) for number in range(num_seeds)]


def _pair(variant: Variant, workload: SeededWorkload) -> tuple[PlayedRun, PlayedRun]:
    """The paper's rule, and rollog's."""
    run = training_run(variant)
    return (
        played(EvictingModel(workload, run), variant),
        played(TrainingModel(workload, run), variant),
    )


def _figures_of(variant: Variant, pairs: Sequence[tuple[PlayedRun, PlayedRun]]) -> list[Figure]:
    name = f"eviction.alpha_{variant.alpha:g}"
    figures = [
        mean_figure(
            f"{name}.step_time",
            "step time with the paper's rule / with rollog's",
            [paper.step_seconds / rollog.step_seconds for paper, rollog in pairs],
            higher_is_better=False,
        )
    ]
    for rule, runs in zip(("paper", "rollog"), zip(*pairs, strict=True), strict=True):
        figures += [
            mean_figure(
                f"{name}.{rule}.evicted",
                "prompts that lost all they had, per prompt trained",
                [run.evicted for run in runs],
                higher_is_better=False,
            ),
            mean_figure(
                f"{name}.{rule}.begun",
                "rollouts begun per rollout trained",
                [run.begun for run in runs],
                higher_is_better=False,
            ),
        ]
    return figures
