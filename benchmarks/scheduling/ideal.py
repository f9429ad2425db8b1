"""What a variant would take if decisions and messages took no time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness.engine_clock import full_speed, slower_beyond_64
from benchmarks.scheduling.ideal_slots import (
    Batch,
    SlotModel,
    batch_seconds,
    queue_seconds,
    unreplicated_seconds,
)
from benchmarks.scheduling.ideal_training import TrainingRun, training_step_seconds

if TYPE_CHECKING:
    from benchmarks.harness.variant import Variant
    from benchmarks.harness.workload import SeededWorkload


def has_ideal(variant: Variant) -> bool:
    """Whether there is a model of it: of several steps only with equal slots, without redundancy and filter."""
    has_redundancy = variant.redundant_groups > 0 or variant.redundant_replicas > 0
    is_plain = variant.num_workers == 1 and variant.pass_rate == 1 and not has_redundancy
    return variant.num_steps == 1 or (is_plain and variant.scheduling == "queue")


def ideal_seconds(variant: Variant, workload: SeededWorkload) -> float:
    """Engine seconds from the first order to the full batch, or of one step of several.

    Raises ValueError where there is no model of the variant.
    """
    if not has_ideal(variant):
        raise ValueError(
            f"there is no model of {variant.name}: several steps on several workers, redundancy or a filter"
        )
    if variant.num_steps > 1:
        return training_step_seconds(workload, training_run(variant))
    slowdown = slower_beyond_64 if variant.slows_down else full_speed
    model = SlotModel(variant.num_workers, variant.slots_per_worker, slowdown)
    batch = Batch(num_groups=variant.num_groups, group_size=variant.group_size)
    if not variant.replicate:
        return unreplicated_seconds(workload, batch, model)
    if variant.scheduling == "batch":
        return batch_seconds(workload, batch, model)
    # Scoring takes no slot: only what is scored last holds the batch up.
    generated = queue_seconds(workload, batch, model, redundant_groups=variant.redundant_groups)
    return generated + variant.reward_seconds


def training_run(variant: Variant) -> TrainingRun:
    """What a variant of several steps on one worker trains, and on what."""
    return TrainingRun(
        num_groups=variant.num_groups,
        group_size=variant.group_size,
        num_steps=variant.num_steps,
        num_slots=variant.slots_per_worker,
        train_seconds=variant.train_seconds,
        freshness=variant.freshness,
    )
