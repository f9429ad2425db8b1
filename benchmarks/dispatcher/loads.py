"""Loads for a dispatcher, and the figures of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, mean_figure
from benchmarks.harness.variant import Variant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

most_cpu_ms = 0.2
"""Target: processor milliseconds of a task."""

least_share = 0.9
"""Target: throughput of 256 workers over what their tasks and the cores allow."""

_group_size = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Workers with slots, and how many tasks a second they end; None: each at once."""

    name: str
    num_workers: int
    slots_per_worker: int
    prefetch_tasks: int
    tasks_per_second: float | None = None

    def variant(self) -> Variant:
        """One step that never comes: more groups than can be answered in the time."""
        return Variant(
            name=f"dispatcher.{self.name}",
            num_groups=20_000,
            group_size=_group_size,
            num_workers=self.num_workers,
            slots_per_worker=self.slots_per_worker,
            prefetch_tasks=self.prefetch_tasks,
        )


loads = (
    Load(name="workers_32", num_workers=32, slots_per_worker=16, prefetch_tasks=8, tasks_per_second=1000.0),
    Load(name="workers_32_at_once", num_workers=32, slots_per_worker=16, prefetch_tasks=8),
    Load(name="workers_256", num_workers=256, slots_per_worker=16, prefetch_tasks=8, tasks_per_second=2000.0),
    Load(name="workers_256_at_once", num_workers=256, slots_per_worker=16, prefetch_tasks=8),
)

fleet = Load(name="fleet_256", num_workers=256, slots_per_worker=1, prefetch_tasks=1)
task_seconds = 1.0
"""What a task of the fleet takes in its slot."""
num_slots = fleet.num_workers * fleet.slots_per_worker
slots_per_second = num_slots / task_seconds
"""Tasks a second of slots that are never empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Processor seconds of the dispatcher over a number of tasks, in so many seconds; `total` is of all roles.

    `empty_slot_seconds` is for how long slots held no task, all together, where that was looked at.
    """

    num_tasks: int
    seconds: float
    cpu_seconds: float
    total_cpu_seconds: float = 0.0
    empty_slot_seconds: float = 0.0

    @property
    def cpu_ms(self) -> float:
        """Processor milliseconds of the dispatcher for one task."""
        return 1000 * self.cpu_seconds / self.num_tasks

    @property
    def throughput(self) -> float:
        """Tasks ended in a second."""
        return self.num_tasks / self.seconds

    def ideal(self, num_cores: int) -> float:
        """Tasks a second that slots and cores allow: each task takes a slot its time, and all roles their cores."""
        by_cores = num_cores * self.num_tasks / self.total_cpu_seconds
        return min(slots_per_second, by_cores)


def cost_figures(where: str, by_name: Mapping[str, Sequence[Cost]]) -> list[Figure]:
    """Per load what a task cost, and at which throughput."""
    figures = []
    for name, costs in by_name.items():
        if not costs:
            continue
        figures.append(
            mean_figure(
                f"dispatcher.{where}.{name}.cpu_ms",
                "ms of processor of the dispatcher for a task",
                [cost.cpu_ms for cost in costs],
                target=most_cpu_ms,
                higher_is_better=False,
            )
        )
        figures.append(
            mean_figure(
                f"dispatcher.{where}.{name}.throughput", "tasks/s", [cost.throughput for cost in costs]
            )
        )
    return figures


def busy_slots_figures(costs: Sequence[Cost]) -> list[Figure]:
    """What share of its slots the fleet keeps busy in counted time: no role lacks a core there."""
    return [
        mean_figure(
            "dispatcher.memory.fleet_256.share",
            "of the time of all slots, with a task in them",
            [1 - cost.empty_slot_seconds / (cost.seconds * num_slots) for cost in costs],
            target=least_share,
            ideal=1.0,
        )
    ]


def fleet_figures(costs: Sequence[Cost], num_cores: int) -> list[Figure]:
    """What the fleet gets through, and its share of what slots and cores allow."""
    if not costs:
        return []
    ideals = [cost.ideal(num_cores) for cost in costs]
    shares = [cost.throughput / ideal for cost, ideal in zip(costs, ideals, strict=True)]
    return [
        mean_figure(
            "dispatcher.fleet_256.throughput",
            f"tasks/s of {task_seconds:g} s each; ideal: the smaller of what slots and cores allow",
            [cost.throughput for cost in costs],
            ideal=fmean(ideals),
        ),
        mean_figure(
            "dispatcher.fleet_256.share", "throughput / ideal", shares, target=least_share, ideal=1.0
        ),
        mean_figure(
            "dispatcher.fleet_256.cpu_ms",
            "ms of processor of the dispatcher for a task",
            [cost.cpu_ms for cost in costs],
            target=most_cpu_ms,
            higher_is_better=False,
        ),
        mean_figure(
            "dispatcher.fleet_256.total_cpu_ms",
            "ms of processor of broker, dispatcher and workers for a task",
            [1000 * cost.total_cpu_seconds / cost.num_tasks for cost in costs],
            higher_is_better=False,
        ),
    ]
