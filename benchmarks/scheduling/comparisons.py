"""Queue scheduling, redundant prompts and prompt replication, each against the same batches without it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.harness.variant import Variant

if TYPE_CHECKING:
    from benchmarks.harness.variant import Scheduling

_pass_rates = (0.7, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two variants on the same workloads; the figure is the time of `baseline` over that of `mode`."""

    name: str
    baseline: Variant
    mode: Variant
    num_seeds: int


warm_up_variant = Variant(
    name="warm_up", num_groups=4, group_size=4, slots_per_worker=16, redundant_groups=2, pass_rate=0.5
)
"""A small run that counts for nothing."""


def queue_comparisons(num_seeds: int) -> list[Comparison]:
    """Queue scheduling against batch rounds: 8 prompts x 8, of which a share passes the filter."""
    # Where every group passes, 8 in flight are one round.
    return [
        _against_rounds(pass_rate, _variant("queue", pass_rate, 64), num_seeds)
        for pass_rate in _pass_rates
        if pass_rate < 1
    ]


def redundancy_comparisons(num_seeds: int) -> list[Comparison]:
    """16 redundant prompts beside the 8 of a batch, against batch rounds: on few slots, many, and a slowing engine."""
    return [
        _against_rounds(pass_rate, mode, num_seeds)
        for pass_rate in _pass_rates
        for mode in (
            _variant("queue", pass_rate, 64, 16),
            _variant("queue", pass_rate, 192, 16),
            _variant("queue", pass_rate, 192, 16, slows_down=True),
        )
    ]


def _against_rounds(pass_rate: float, mode: Variant, num_seeds: int) -> Comparison:
    return Comparison(
        name=mode.name,
        baseline=_variant("batch", pass_rate, 64),
        mode=mode,
        num_seeds=num_seeds if pass_rate == _pass_rates[0] else max(1, num_seeds // 4),
    )


def _variant(
    scheduling: Scheduling,
    pass_rate: float,
    num_slots: int,
    redundant_groups: int = 0,
    *,
    slows_down: bool = False,
) -> Variant:
    in_flight = 8 + redundant_groups
    slower = ".slowing_engine" if slows_down else ""
    return Variant(
        name=f"{scheduling}.pass_{pass_rate}.in_flight_{in_flight}.slots_{num_slots}{slower}",
        num_groups=8,
        group_size=8,
        slots_per_worker=num_slots,
        scheduling=scheduling,
        redundant_groups=redundant_groups,
        pass_rate=pass_rate,
        slows_down=slows_down,
        prefetch_tasks=16,
    )


def replication_comparisons(num_seeds: int) -> list[Comparison]:
    """Prompt replication against one order per prompt: prompts x replicas on 4 and 8 workers of 32 slots."""
    return [
        Comparison(
            name=f"replication.{num_groups}x{group_size}.workers_{num_workers}",
            baseline=_replication(num_groups, group_size, num_workers, replicate=False),
            mode=_replication(num_groups, group_size, num_workers, replicate=True),
            num_seeds=num_seeds,
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
