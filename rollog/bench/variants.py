"""What a scheduling benchmark runs: one way of collecting a batch, and what it would take without overhead.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollog.bench.draws import Draw
from rollog.bench.slots import (
    Batch,
    SlotModel,
    batch_seconds,
    full_speed,
    queue_seconds,
    slower_beyond_64,
    unreplicated_seconds,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """`num_groups` groups of `group_size` that pass are collected by workers with slots, in one way.

    `slows_down`: the engine's speed falls with occupied slots (`rollog.bench.slots.slower_beyond_64`).
    """

    name: str
    num_groups: int
    group_size: int
    num_workers: int = 1
    slots_per_worker: int
    scheduling: Literal["queue", "batch"] = "queue"
    replicate: bool = True
    redundant_groups: int = 0
    pass_rate: float = 1.0
    longest_seconds: float = 400.0
    slows_down: bool = False
    prefetch_tasks: int = 4
    num_steps: int = 1
    alpha: float = 0.0
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
            return self.num_steps * self.longest_seconds
        return 4 * self.ideal_seconds(draw)

    def ideal_seconds(self, draw: Draw) -> float:
        """The time from the first order to the full batch if every decision and message took no time."""
        slowdown = slower_beyond_64 if self.slows_down else full_speed
        model = SlotModel(self.num_workers, self.slots_per_worker, slowdown)
        batch = Batch(num_groups=self.num_groups, group_size=self.group_size)
        if not self.replicate:
            return unreplicated_seconds(draw, batch, model)
        if self.scheduling == "batch":
            return batch_seconds(draw, batch, model)
        return queue_seconds(draw, batch, model, redundant_groups=self.redundant_groups)


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
        for pass_rate, draws in ((0.7, num_draws), (0.5, _part(num_draws, 4)), (1.0, _part(num_draws, 4)))
        for comparison in _at_pass_rate(pass_rate, draws)
    ]


def _at_pass_rate(pass_rate: float, num_draws: int) -> list[Comparison]:
    def variant(
        mode: Literal["queue", "batch"],
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
            num_draws=_part(num_draws, 10),
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


def _part(num_draws: int, divisor: int) -> int:
    return max(1, num_draws // divisor)
