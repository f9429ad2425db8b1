"""What happens to the network, one after the other, and what a phase cost. Pure but for what it is asked to do.

phase        |---- fault ----|-- settling --|
steps    .  .  .  .          .   . .  .  .  .      its step time = (fault + settling) / steps in that time
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.machines.link import Conditions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

settling_seconds = 15.0
"""What belongs to a phase after its fault has ended: connections are made again, leases run out."""
undisturbed = "undisturbed"

_away = Conditions(is_cut=True)
_delay, _loss, _rate = 0.05, 0.05, 200e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One state of the network: that of the links of some hosts, and hosts whose own system sees its link go down.

    `stopped` are hosts whose server takes connections and answers nothing.
    """

    name: str
    seconds: float
    links: Mapping[str, Conditions] = field(default_factory=dict)
    down: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()


def phases(head: str, store: str, workers: Sequence[str]) -> tuple[Phase, ...]:
    """All of them, between two without a fault."""
    first, second, *_ = workers
    every = dict.fromkeys(workers, Conditions)

    def at_workers(conditions: Conditions) -> dict[str, Conditions]:
        return dict.fromkeys(every, conditions)

    worst = Conditions(delay_seconds=_delay, loss=_loss, bits_per_second=_rate)
    slow_store = Conditions(delay_seconds=0.2, bits_per_second=10e6)
    return (
        Phase(name=undisturbed, seconds=30),
        Phase(name="rate_200mbit", seconds=20, links=at_workers(Conditions(bits_per_second=_rate))),
        Phase(name="delay_50ms", seconds=20, links=at_workers(Conditions(delay_seconds=_delay))),
        Phase(name="loss_5_percent", seconds=20, links=at_workers(Conditions(loss=_loss))),
        Phase(name="delay_loss_rate", seconds=20, links=at_workers(worst)),
        Phase(name="worker_link_down", seconds=20, down=(first,)),
        Phase(name="worker_half_open", seconds=20, links={second: _away}),
        Phase(name="all_workers_cut", seconds=20, links=at_workers(_away)),
        Phase(name="store_cut", seconds=15, links={store: _away}),
        Phase(name="store_stopped", seconds=15, stopped=(store,)),
        Phase(name="store_slow", seconds=20, links={store: slow_store}),
        Phase(name="head_cut", seconds=20, links={head: _away}),
        Phase(name=undisturbed, seconds=30),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A phase with when it began and ended, settling included, in seconds since 1970."""

    phase: Phase
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a phase cost: its mean step time, and the longest time without a step."""

    name: str
    num_steps: int
    step_seconds: float
    """The whole phase where it had no step."""
    longest_gap_seconds: float


def cost_of(happened: Happened, steps: Sequence[float]) -> Cost:
    """The cost of a phase from the moments of all steps, in seconds since 1970."""
    inside = [moment for moment in steps if happened.began <= moment < happened.ended]
    edges = [happened.began, *inside, happened.ended]
    return Cost(
        name=happened.phase.name,
        num_steps=len(inside),
        step_seconds=(happened.ended - happened.began) / max(1, len(inside)),
        longest_gap_seconds=max(after - before for before, after in pairwise(edges)),
    )


def ratios(costs: Sequence[Cost]) -> dict[str, float]:
    """Step time of each phase over the mean of those without a fault, by name."""
    base = fmean(cost.step_seconds for cost in costs if cost.name == undisturbed)
    return {cost.name: cost.step_seconds / base for cost in costs if cost.name != undisturbed}
