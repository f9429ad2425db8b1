"""Kills, pauses and second processes mixed, in as many short runs as they take; what they cost, read from the log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.checks import broker_of, raw_topic, verify
from benchmarks.chaos.cost import cost_of, cost_table
from benchmarks.chaos.faults import FaultKind, Whole, plan_faults, time_outs
from benchmarks.chaos.killed_run import state_directory
from benchmarks.chaos.mixed_run import mixed_run
from benchmarks.harness.demo_run import set_options
from benchmarks.harness.figures import Figure, bootstrap_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.chaos.cost import FaultCost
    from benchmarks.chaos.faults import FaultTarget
    from benchmarks.chaos.mixed_run import MixedResult

_of_a_run = 12
"""Kills of a run, and pauses, so that runs stay short."""
_doubles_of_a_run = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedTargets:
    """Who is there to be met, and with which settings the runs are made."""

    targets: Sequence[FaultTarget]
    settings: Mapping[str, object]
    cache: Path


@dataclass(slots=True)
class Tally:
    """Everything that took place in the runs so far."""

    costs: list[FaultCost] = field(default_factory=list)
    num_missed: int = 0
    runs: list[dict[str, Any]] = field(default_factory=list)

    def count(self, kind: FaultKind) -> int:
        """Faults of that kind."""
        return sum(cost.fault.kind is kind for cost in self.costs)


def measure_mixed(
    who: MixedTargets,
    *,
    num_kills: int,
    num_pauses: int,
    seed: int,
    on_progress: Callable[[str], None],
    on_run: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Runs until so many kills and pauses took place. Raises ChildFailed as the parts do.

    `on_run` is told of the tally after each run, so that a long measurement that is cut off leaves what it has.
    """
    tally = Tally()
    while tally.count(FaultKind.KILL) < num_kills or tally.count(FaultKind.PAUSE) < num_pauses:
        number = len(tally.runs)
        faults = plan_faults(
            seed + number,
            [*who.targets, Whole.UP],
            num_kills=_due(num_kills - tally.count(FaultKind.KILL)),
            num_pauses=_due(num_pauses - tally.count(FaultKind.PAUSE)),
            num_doubles=_doubles_of_a_run,
        )
        with state_directory(who.cache) as home:
            result = mixed_run(
                f"chaos-{number}",
                home,
                set_options({**who.settings, **time_outs}),
                faults=faults,
                on_fault=on_progress,
            )
            said = verify(result.run)
            for line in said:
                on_progress(line)
            tally.costs += costs_of_run(result)
        tally.num_missed += len(result.run.missed)
        tally.runs.append({"seed": seed + number, "num_faults": len(result.happened), "recount": said[-1]})
        on_run(tally)
    return tally


def _due(left: int) -> int:
    return max(0, min(_of_a_run, left))


def costs_of_run(result: MixedResult) -> list[FaultCost]:
    """What each fault cost, from the log of the run that is over."""
    with broker_of(result.run) as address:
        names = ("tasks", "samples", "workers", "steps")
        topics = {name: raw_topic(address, result.run.name, name) for name in names}
    return cost_of(result.happened, **topics, until=result.stopped_at)


def mixed_figures(tally: Tally) -> list[Figure]:
    """What took place; that nothing was off is said by there being figures."""
    unit = "in runs that closed; audit and recount clean, replay equal"
    return [
        Figure(name="chaos.runs", value=len(tally.runs), unit="runs"),
        *(
            Figure(name=f"chaos.{kind}s", value=tally.count(kind), unit=unit)
            for kind in FaultKind
            if tally.count(kind)
        ),
        Figure(
            name="chaos.missed",
            value=tally.num_missed,
            unit="planned faults that found nobody",
            higher_is_better=False,
        ),
        Figure(name="chaos.trained_twice", value=0, unit="samples, by the recount", higher_is_better=False),
        *(_cost_figure(tally, kind) for kind in (FaultKind.KILL, FaultKind.PAUSE) if tally.count(kind)),
        *_counts(tally),
    ]


def details_of(tally: Tally) -> dict[str, object]:
    """What stands in the results beside the figures: the table of costs, and each run."""
    return {"cost": cost_table(tally.costs), "runs": tally.runs}


def _cost_figure(tally: Tally, kind: FaultKind) -> Figure:
    seconds = [cost.seconds for cost in tally.costs if cost.fault.kind is kind]
    return Figure(
        name=f"chaos.cost.{kind}",
        value=fmean(seconds),
        unit=f"trajectory-generation-seconds lost by a {kind}",
        higher_is_better=False,
        interval=bootstrap_interval(seconds, fmean),
        num_draws=len(seconds),
    )


def _counts(tally: Tally) -> list[Figure]:
    counts = Counter((str(cost.fault.kind), str(cost.fault.target)) for cost in tally.costs)
    return [
        Figure(name=f"chaos.{kind}s.{target}", value=number, unit=f"{kind}s")
        for (kind, target), number in sorted(counts.items())
    ]
