"""What each fault of the network costs a run over several hosts, and that nothing is lost by it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure
from benchmarks.machines.machine_run import all_phases, machine_run
from benchmarks.machines.phases import cost_of, ratios, undisturbed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.machines.phases import Cost


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
            steps = run.steps()
            restarts, statuses = run.num_restarts(), run.statuses()
    costs = [cost_of(each, steps) for each in happened]
    for cost in costs:
        on_progress(
            f"{cost.name}: {cost.num_steps} steps, {cost.step_seconds:.2f} s each, longest gap "
            f"{cost.longest_gap_seconds:.1f} s"
        )
    details = {"phases": [_row(cost) for cost in costs], "restarts": restarts, "samples": statuses, **checked}
    return _figures(costs, restarts, len(steps)), details


def _row(cost: Cost) -> dict[str, object]:
    return {
        "name": cost.name,
        "num_steps": cost.num_steps,
        "step_seconds": round(cost.step_seconds, 3),
        "longest_gap_seconds": round(cost.longest_gap_seconds, 1),
    }


def _figures(costs: Sequence[Cost], restarts: Mapping[str, int], num_steps: int) -> list[Figure]:
    base = [cost for cost in costs if cost.name == undisturbed]
    return [
        Figure(
            name="machines.steps",
            value=num_steps,
            unit="steps in a run that closed; audit and recount clean, replay equal",
        ),
        Figure(
            name="machines.step_seconds.undisturbed",
            value=sum(cost.step_seconds for cost in base) / len(base),
            unit="s a step, at the beginning and at the end",
            higher_is_better=False,
        ),
        *(
            Figure(
                name=f"machines.step_time.{name}",
                value=ratio,
                unit="step time / undisturbed, settling included",
                higher_is_better=False,
            )
            for name, ratio in ratios(costs).items()
        ),
        Figure(
            name="machines.restarts",
            value=sum(restarts.values()),
            unit="roles that were started again",
            higher_is_better=False,
        ),
    ]
