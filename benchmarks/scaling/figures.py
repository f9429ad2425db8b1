"""What more workers bring, and what they cost the dispatcher. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, mean_figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

least_share_of_linear = 0.9
most_cpu_seconds = 0.5
"""Targets: throughput over that of slots that are never empty; the dispatcher's CPU seconds for 1,000 tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a dispatcher went through in a while, in real seconds. `linear` is tasks/s with every slot always taken."""

    num_tasks: int
    seconds: float
    dispatcher_cpu_seconds: float
    linear: float | None = None

    @property
    def throughput(self) -> float:
        """Tasks ended in a second."""
        return self.num_tasks / self.seconds

    @property
    def share_of_linear(self) -> float:
        """Throughput over `linear`."""
        assert self.linear is not None
        return self.throughput / self.linear

    @property
    def cpu_seconds(self) -> float:
        """The dispatcher's CPU seconds for 1,000 tasks."""
        return 1000 * self.dispatcher_cpu_seconds / self.num_tasks

    @property
    def dispatcher_share(self) -> float:
        """The dispatcher's CPU seconds in a second."""
        return self.dispatcher_cpu_seconds / self.seconds


def worker_figures(by_number: Mapping[int, Sequence[Load]]) -> list[Figure]:
    """Per number of workers throughput, its share of linear, and the dispatcher's CPU time."""
    most = max(by_number, default=0)
    return [
        figure
        for number, loads in by_number.items()
        if loads
        for figure in _worker_figures(f"scaling.workers_{number}", loads, is_most=number == most)
    ]


def _worker_figures(name: str, loads: Sequence[Load], *, is_most: bool) -> list[Figure]:
    linear = fmean(load.linear for load in loads if load.linear is not None)
    shares = [load.share_of_linear for load in loads]
    return [
        mean_figure(f"{name}.throughput", "tasks/s", [load.throughput for load in loads], ideal=linear),
        mean_figure(
            f"{name}.share_of_linear",
            "throughput / that of slots which are never empty",
            shares,
            target=least_share_of_linear,
            ideal=1.0,
        ),
        mean_figure(
            f"{name}.dispatcher_cpu",
            "CPU s of the dispatcher for 1,000 tasks",
            [load.cpu_seconds for load in loads],
            target=most_cpu_seconds if is_most else None,
            higher_is_better=False,
        ),
        mean_figure(
            f"{name}.dispatcher_share",
            "CPU s of the dispatcher in a second",
            [load.dispatcher_share for load in loads],
            higher_is_better=False,
        ),
    ]


def dispatcher_figures(by_name: Mapping[str, Sequence[Load]]) -> list[Figure]:
    """Per number of answering workers and kind of answer: tasks that got through, and what each cost the dispatcher."""
    return [figure for name, loads in by_name.items() if loads for figure in _dispatcher_figures(name, loads)]


def _dispatcher_figures(name: str, loads: Sequence[Load]) -> list[Figure]:
    return [
        mean_figure(
            f"{name}.throughput",
            "tasks/s, every task answered soon",
            [load.throughput for load in loads],
        ),
        mean_figure(
            f"{name}.dispatcher_cpu",
            "CPU s of the dispatcher for 1,000 tasks",
            [load.cpu_seconds for load in loads],
            target=most_cpu_seconds,
            higher_is_better=False,
        ),
        mean_figure(
            f"{name}.dispatcher_share",
            "CPU s of the dispatcher in a second: near 1 it is what holds the tasks up",
            [load.dispatcher_share for load in loads],
        ),
        mean_figure(
            f"{name}.saturation",
            "tasks/s that would keep the dispatcher busy all the time",
            [load.throughput / load.dispatcher_share for load in loads],
        ),
    ]
