"""What happens to the network, one after the other, and what a phase cost. Pure but for what it is asked to do.

phase     | undisturbed  |---- fault ----|-- settling --| undisturbed  |
steps     .  .  .  .  .  .  .            .   . .  .  .  .  .  .  .  .  .

A phase ends at a step, so its steps fill its time. What it cost is told against the undisturbed phases on both sides of
it: with 10 steps in 40 s beside steps of 1.5 s it took 4 / 1.5 = 2.7 times as long, and lost 40 - 10 x 1.5 = 25 s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from statistics import fmean, quantiles
from typing import TYPE_CHECKING

from benchmarks.harness.figures import least_draws, num_resamples
from benchmarks.machines.link import Conditions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

settling_seconds = 15.0
"""What belongs to a phase after its fault has ended: connections are made again, leases run out."""
undisturbed_phase_seconds = 20.0
undisturbed = "undisturbed"

_away = Conditions(is_cut=True)
_delay, _loss, _rate = 0.05, 0.05, 200e6
probed: Mapping[str, Conditions] = {
    "undisturbed": Conditions(),
    "rate_200mbit": Conditions(bits_per_second=_rate),
    "delay_50ms": Conditions(delay_seconds=_delay),
    "loss_5_percent": Conditions(loss=_loss),
    "delay_loss_rate": Conditions(delay_seconds=_delay, loss=_loss, bits_per_second=_rate),
}
"""Links of workers that are measured before the run begins: whether they do what is said of them."""


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
    """All faults. Before each, and after the last, there is a phase without one."""
    first, second, *_ = workers
    every = dict.fromkeys(workers, Conditions)

    def at_workers(conditions: Conditions) -> dict[str, Conditions]:
        return dict.fromkeys(every, conditions)

    slow_store = Conditions(delay_seconds=0.2, bits_per_second=10e6)
    return (
        *(
            Phase(name=name, seconds=20, links=at_workers(conditions))
            for name, conditions in probed.items()
            if name != undisturbed
        ),
        Phase(name="worker_link_down", seconds=20, down=(first,)),
        Phase(name="worker_half_open", seconds=20, links={second: _away}),
        Phase(name="all_workers_cut", seconds=20, links=at_workers(_away)),
        Phase(name="store_cut", seconds=15, links={store: _away}),
        Phase(name="store_stopped", seconds=15, stopped=(store,)),
        Phase(name="store_slow", seconds=20, links={store: slow_store}),
        Phase(name="head_cut", seconds=20, links={head: _away}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A phase with when it began and ended, settling included, in seconds since 1970: each a moment after a step."""

    phase: Phase
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a phase cost. `steps` and `base` are the seconds of its steps, and of those of the phases beside it."""

    name: str
    steps: tuple[float, ...]
    base: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Mean step time over that without the fault."""
        return fmean(self.steps) / fmean(self.base)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the ratio by resampling steps of both sides; None for too few."""
        if min(len(self.steps), len(self.base)) < least_draws:
            return None
        noise = Random(0)  # statistics, not secrets
        ratios = quantiles(
            (
                fmean(noise.choices(self.steps, k=len(self.steps)))
                / fmean(noise.choices(self.base, k=len(self.base)))
                for _ in range(num_resamples)
            ),
            n=40,
        )
        return ratios[0], ratios[-1]

    @property
    def lost_seconds(self) -> float:
        """By how much the phase was longer than its steps without the fault."""
        return sum(self.steps) - len(self.steps) * fmean(self.base)


def costs(happened: Sequence[Happened], steps: Sequence[float]) -> list[Cost]:
    """The cost of each fault, from all phases in order and the moments of all steps, in seconds since 1970.

    The first and the last phase, and those between two faults, are undisturbed.
    """
    seconds = [_seconds_of(each, steps) for each in happened]
    return [
        Cost(name=each.phase.name, steps=tuple(seconds[at]), base=(*seconds[at - 1], *seconds[at + 1]))
        for at, each in enumerate(happened)
        if each.phase.name != undisturbed
    ]


def undisturbed_seconds(happened: Sequence[Happened], steps: Sequence[float]) -> list[float]:
    """The seconds of all steps without a fault."""
    return [
        seconds for each in happened if each.phase.name == undisturbed for seconds in _seconds_of(each, steps)
    ]


def _seconds_of(happened: Happened, steps: Sequence[float]) -> list[float]:
    """How long each step took that ended in a phase: since the step before it."""
    return [after - before for before, after in pairwise(steps) if happened.began < after <= happened.ended]
