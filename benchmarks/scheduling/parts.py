"""The parts of the scheduling experiment by name: one question each, with its comparisons and its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.scheduling.asynchrony import training_comparisons
from benchmarks.scheduling.comparisons import (
    queue_comparisons,
    redundancy_comparisons,
    replication_comparisons,
)
from benchmarks.scheduling.eviction import eviction_figures
from benchmarks.scheduling.figures import figures_of
from benchmarks.scheduling.protection import protection_comparisons, protection_figures
from benchmarks.scheduling.scoring import scoring_comparisons, scoring_figures
from benchmarks.scheduling.slow_worker import slow_worker_comparisons, slow_worker_figures
from benchmarks.scheduling.steady_redundancy import steady_redundancy_comparisons, steady_redundancy_figures

if TYPE_CHECKING:
    from benchmarks.harness.figures import Figure
    from benchmarks.scheduling.comparisons import Comparison
    from benchmarks.scheduling.run_result import RunResult

MakeFigures = Callable[["Sequence[Comparison]", "Mapping[str, Mapping[int, RunResult]]"], "list[Figure]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One question. `num_seeds` workloads are what it is published with."""

    question: str
    num_seeds: int
    comparisons: Callable[[int], list[Comparison]]
    figures: MakeFigures = figures_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedPart:
    """One question that rules alone answer, played in discrete events: no broker, no real time.

    `figures` are those of that many workloads of a seed.
    """

    question: str
    num_seeds: int
    figures: Callable[[int, int], list[Figure]]


measured_parts: Mapping[str, Part] = {
    "queue": Part(
        question="queue scheduling against batch rounds", num_seeds=20, comparisons=queue_comparisons
    ),
    "redundancy": Part(
        question="redundant prompts against batch rounds", num_seeds=20, comparisons=redundancy_comparisons
    ),
    "steady_redundancy": Part(
        question="redundant prompts over several steps against none",
        num_seeds=4,
        comparisons=steady_redundancy_comparisons,
        figures=steady_redundancy_figures,
    ),
    "replication": Part(
        question="one task per rollout against one per prompt",
        num_seeds=12,
        comparisons=replication_comparisons,
    ),
    "asynchrony": Part(
        question="asynchronous training against synchronous", num_seeds=7, comparisons=training_comparisons
    ),
    "protection": Part(
        question="whether the longest prompts are trained",
        num_seeds=2,
        comparisons=protection_comparisons,
        figures=protection_figures,
    ),
    "slow_worker": Part(
        question="one worker that is 20 times slower",
        num_seeds=4,
        comparisons=slow_worker_comparisons,
        figures=slow_worker_figures,
    ),
    "scoring": Part(
        question="a judge that takes five times as long as a rollout",
        num_seeds=4,
        comparisons=scoring_comparisons,
        figures=scoring_figures,
    ),
}
played_parts: Mapping[str, PlayedPart] = {
    "eviction": PlayedPart(
        question="the rule of ROLL Flash, which evicts prompts that are too old, beside rollog's",
        num_seeds=10,
        figures=eviction_figures,
    )
}
parts: Mapping[str, Part | PlayedPart] = {**measured_parts, **played_parts}
measured_by_default = ("queue", "redundancy", "replication")
