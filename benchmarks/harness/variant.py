"""One way of making a run in simulated time, and one such run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.harness.workload import SeededWorkload
from rollog.settings.groups import FreshnessConfig

never_protected = 1 << 30
"""Stale samples of a group that no run ever sees: `freshness.protect_after` without protection."""

Scheduling = Literal["queue", "batch", "static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """`num_groups` groups of `group_size` that pass are collected by workers with slots, in one way.

    `slows_down`: the engine's speed falls with occupied slots (`benchmarks.harness.engine_clock.slower_beyond_64`).
    `last_worker_slowness`: how many times longer every rollout takes at the last of the workers.
    `train_seconds`: engine seconds that the computation of a training step takes.
    `reward_seconds`: engine seconds that a judge takes for each reward, in a reward process; 0: none is asked.
    `fetch_seconds`: engine seconds that a worker takes for a version's weights.
    `swap_seconds`: engine seconds that it takes to put them into its engine.
    `warm_up_seconds`: engine seconds after which the use of the slots is measured; None: it is not.
    """

    name: str
    num_groups: int
    group_size: int
    num_workers: int = 1
    slots_per_worker: int
    scheduling: Scheduling = "queue"
    replicate: bool = True
    redundant_groups: int = 0
    redundant_replicas: int = 0
    pass_rate: float = 1.0
    longest_seconds: float = 400.0
    slows_down: bool = False
    last_worker_slowness: float = 1.0
    prefetch_tasks: int = 4
    num_steps: int = 1
    alpha: float | Literal["auto"] = 0.0
    train_seconds: float = 0.0
    reward_seconds: float = 0.0
    fetch_seconds: float = 0.0
    swap_seconds: float = 0.0
    warm_up_seconds: float | None = None
    protects: bool = True
    median_seconds: float = 20.0
    variation: float = 0.5
    belongs_to_prompt: bool = False

    def workload(self, seed: int, number: int) -> SeededWorkload:
        """Durations and verdicts of workload `number` of `seed`."""
        return SeededWorkload(
            seed=seed,
            number=number,
            pass_rate=self.pass_rate,
            median_seconds=self.median_seconds,
            variation=self.variation,
            longest_seconds=self.longest_seconds,
            belongs_to_prompt=self.belongs_to_prompt,
        )

    @property
    def freshness(self) -> FreshnessConfig:
        """How old rollouts may be, and whether slow groups are protected."""
        return FreshnessConfig(alpha=self.alpha, protect_after=1 if self.protects else never_protected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run to be made: a variant on workload `number` of `seed`; `speed` engine seconds pass in a real one."""

    variant: Variant
    seed: int
    number: int
    speed: float

    @property
    def workload(self) -> SeededWorkload:
        """Durations and verdicts of this run."""
        return self.variant.workload(self.seed, self.number)
