"""What a scheduling benchmark runs: one way of collecting a batch, and what it would take without overhead.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.harness.workload_seeds import Draw
from benchmarks.scheduling.ideal_slots import (
    Batch,
    SlotModel,
    batch_seconds,
    full_speed,
    queue_seconds,
    slower_beyond_64,
    unreplicated_seconds,
)
from benchmarks.scheduling.ideal_training import TrainingRun, training_step_seconds
from rollog.settings.groups import FreshnessConfig

never_protected = 1 << 30
"""Stale samples of a group that no run ever sees: `freshness.protect_after` without protection."""


Scheduling = Literal["queue", "batch", "static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """`num_groups` groups of `group_size` that pass are collected by workers with slots, in one way.

    `slows_down`: the engine's speed falls with occupied slots (`benchmarks.scheduling.ideal_slots.slower_beyond_64`).
    `last_worker_slowness`: how many times longer every rollout takes at the last of the workers.
    `train_seconds`: engine seconds that the computation of a training step takes.
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
    protects: bool = True
    median_seconds: float = 20.0
    variation: float = 0.5
    belongs_to_prompt: bool = False

    def draw(self, seed: int, number: int) -> Draw:
        """The durations and verdicts of one draw."""
        return Draw(
            seed=seed,
            number=number,
            pass_rate=self.pass_rate,
            median_seconds=self.median_seconds,
            variation=self.variation,
            longest_seconds=self.longest_seconds,
            belongs_to_prompt=self.belongs_to_prompt,
        )

    def patience_seconds(self, draw: Draw) -> float:
        """Engine seconds after which the run has certainly gone wrong."""
        if self.num_steps > 1:
            return self.num_steps * self.longest_seconds * self.last_worker_slowness
        return 4 * self.ideal_seconds(draw)

    @property
    def freshness(self) -> FreshnessConfig:
        """How old rollouts may be, and whether slow groups are protected."""
        return FreshnessConfig(alpha=self.alpha, protect_after=1 if self.protects else never_protected)

    @property
    def has_ideal(self) -> bool:
        """Whether there is a model of it: of several steps only with equal slots and without redundancy."""
        is_plain = self.num_workers == 1 and not self.redundant_groups and not self.redundant_replicas
        return self.num_steps == 1 or (is_plain and self.scheduling == "queue")

    def ideal_seconds(self, draw: Draw) -> float:
        """The time from the first order to the full batch, or of one step, if decisions and messages took no time.

        Raises ValueError where there is no model of the variant.
        """
        if not self.has_ideal:
            raise ValueError(
                f"there is no model of {self.name}: several steps on several workers, or redundancy"
            )
        if self.num_steps > 1:
            return training_step_seconds(draw, self._training_run())
        slowdown = slower_beyond_64 if self.slows_down else full_speed
        model = SlotModel(self.num_workers, self.slots_per_worker, slowdown)
        batch = Batch(num_groups=self.num_groups, group_size=self.group_size)
        if not self.replicate:
            return unreplicated_seconds(draw, batch, model)
        if self.scheduling == "batch":
            return batch_seconds(draw, batch, model)
        return queue_seconds(draw, batch, model, redundant_groups=self.redundant_groups)

    def _training_run(self) -> TrainingRun:
        return TrainingRun(
            num_groups=self.num_groups,
            group_size=self.group_size,
            num_steps=self.num_steps,
            num_slots=self.slots_per_worker,
            train_seconds=self.train_seconds,
            freshness=self.freshness,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two variants on the same draws; the figure is the time of `baseline` over that of `mode`."""

    name: str
    baseline: Variant
    mode: Variant
    num_draws: int


warm_up_variant = Variant(
    name="warm_up", num_groups=4, group_size=4, slots_per_worker=16, redundant_groups=2, pass_rate=0.5
)
"""A small run that counts for nothing."""


def queue_comparisons(num_draws: int) -> list[Comparison]:
    """Queue scheduling and redundant prompts against batch rounds: 8 prompts x 8."""
    return [
        comparison
        for pass_rate, draws in ((0.7, num_draws), (0.5, part_of(num_draws, 4)), (1.0, part_of(num_draws, 4)))
        for comparison in _at_pass_rate(pass_rate, draws)
    ]


def _at_pass_rate(pass_rate: float, num_draws: int) -> list[Comparison]:
    def variant(
        mode: Scheduling,
        num_slots: int,
        redundant_groups: int = 0,
        *,
        slows_down: bool = False,
    ) -> Variant:
        in_flight = 8 + redundant_groups
        slower = ".slowing_engine" if slows_down else ""
        return Variant(
            name=f"{mode}.pass_{pass_rate}.in_flight_{in_flight}.slots_{num_slots}{slower}",
            num_groups=8,
            group_size=8,
            slots_per_worker=num_slots,
            scheduling=mode,
            redundant_groups=redundant_groups,
            pass_rate=pass_rate,
            slows_down=slows_down,
            prefetch_tasks=16,
        )

    baseline = variant("batch", 64)
    modes = (
        variant("queue", 64),
        variant("queue", 64, 16),
        variant("queue", 192, 16),
        variant("queue", 192, 16, slows_down=True),
    )
    return [
        Comparison(name=mode.name, baseline=baseline, mode=mode, num_draws=num_draws)
        for mode in modes
        # Where every group passes, 8 in flight are one round.
        if pass_rate < 1 or mode.redundant_groups
    ]


def replication_comparisons(num_draws: int) -> list[Comparison]:
    """Prompt replication against one order per prompt: prompts x replicas on 4 and 8 workers of 32 slots."""
    return [
        Comparison(
            name=f"replication.{num_groups}x{group_size}.workers_{num_workers}",
            baseline=_replication(num_groups, group_size, num_workers, replicate=False),
            mode=_replication(num_groups, group_size, num_workers, replicate=True),
            num_draws=part_of(num_draws, 10),
        )
        for num_groups, group_size in ((16, 32), (32, 16), (64, 16))
        for num_workers in (4, 8)
    ]


def _replication(num_groups: int, group_size: int, num_workers: int, *, replicate: bool) -> Variant:
    way = "replicated" if replicate else "one_task_per_prompt"
    return Variant(
        name=f"{way}.{num_groups}x{group_size}.workers_{num_workers}",
        num_groups=num_groups,
        group_size=group_size,
        num_workers=num_workers,
        slots_per_worker=32,
        replicate=replicate,
        longest_seconds=160.0,
    )


def part_of(num_draws: int, divisor: int) -> int:
    """A part of the draws, for what takes longer or varies less."""
    return max(1, num_draws // divisor)
