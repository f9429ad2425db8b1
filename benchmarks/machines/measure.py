"""What each fault of the network costs a run over several hosts, and that nothing is lost by it."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, mean_figure, rounded
from benchmarks.machines.machine_run import all_phases, machine_run
from benchmarks.machines.phases import costs, probed, undisturbed_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.machines.phases import Cost
    from benchmarks.machines.probe import Measured


def measure_machines(
    cache: Path,
    *,
    engine: str,
    seed: int,
    only: Sequence[str] | None,
    keep: Path | None,
    on_progress: Callable[[str], None],
) -> tuple[list[Figure], dict[str, object]]:
    """Figures of one run through all phases, and details. Raises ChildFailed where anything is lost or stands still.

    `keep` is a directory for logs and records that stays.
    """
    with tempfile.TemporaryDirectory(prefix="rollog-machines-") as temporary:
        directory = keep or Path(temporary)
        with machine_run(directory, cache, engine=engine, seed=seed, tell=on_progress) as run:
            happened = all_phases(run, only, on_progress)
            run.finish()
            checked = run.verify()
            steps, links = run.steps(), run.links
            restarts, statuses = run.num_restarts(), run.statuses()
    found = costs(happened, steps)
    for cost in found:
        on_progress(
            f"{cost.name}: {len(cost.steps)} steps, {cost.ratio:.2f} x, {cost.lost_seconds:.1f} s lost"
        )
    details = {
        "phases": [_row(cost) for cost in found],
        "links": {name: asdict(measured) for name, measured in links.items()},
        "restarts": restarts,
        "samples": statuses,
        **checked,
    }
    calm = undisturbed_seconds(happened, steps)
    return [*_run_figures(calm, restarts, len(steps)), *_cost_figures(found), *_link_figures(links)], details


def _row(cost: Cost) -> dict[str, object]:
    return {
        "name": cost.name,
        "num_steps": len(cost.steps),
        "step_seconds": round(fmean(cost.steps), 3),
        "undisturbed_seconds": round(fmean(cost.base), 3),
        "ratio": round(cost.ratio, 3),
        "interval": rounded(cost.interval),
        "lost_seconds": round(cost.lost_seconds, 1),
        "longest_step_seconds": round(max(cost.steps), 1),
    }


def _run_figures(calm: Sequence[float], restarts: Mapping[str, int], num_steps: int) -> list[Figure]:
    return [
        Figure(
            name="machines.steps",
            value=num_steps,
            unit="steps in a run that closed; audit and recount clean, replay equal",
        ),
        mean_figure(
            "machines.step_seconds.undisturbed",
            "s a step in all phases without a fault",
            calm,
            higher_is_better=False,
        ),
        Figure(
            name="machines.restarts",
            value=sum(restarts.values()),
            unit="roles that were started again",
            higher_is_better=False,
        ),
    ]


def _cost_figures(found: Sequence[Cost]) -> Iterator[Figure]:
    for cost in found:
        yield Figure(
            name=f"machines.step_time.{cost.name}",
            value=round(cost.ratio, 4),
            unit="step time / that of the undisturbed phases beside it, settling included",
            higher_is_better=False,
            interval=rounded(cost.interval),
            num_draws=len(cost.steps),
        )
        yield Figure(
            name=f"machines.lost_seconds.{cost.name}",
            value=round(cost.lost_seconds, 1),
            unit="s by which the phase was longer than its steps undisturbed",
            higher_is_better=False,
        )


def _link_figures(links: Mapping[str, Measured]) -> Iterator[Figure]:
    for name, conditions in probed.items():
        measured = links[name]
        yield Figure(
            name=f"machines.link.{name}.loss",
            value=round(measured.loss, 4),
            unit="share of packets lost, each way",
            ideal=conditions.loss,
            higher_is_better=False,
        )
        yield Figure(
            name=f"machines.link.{name}.round_trip",
            value=round(measured.round_trip_seconds, 5),
            unit="s, median",
            ideal=2 * conditions.delay_seconds,
            higher_is_better=False,
        )
        rate = conditions.bits_per_second
        yield Figure(
            name=f"machines.link.{name}.megabits",
            value=round(measured.megabits_per_second, 1),
            unit="Mbit/s of one TCP stream",
            ideal=None if rate is None else rate / 1e6,
        )
