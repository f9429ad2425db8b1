"""What each algorithm learns from samples that are so many versions old, on the demo's task."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.harness.own_kafka import own_kafka
from benchmarks.learning.cells import Part, measure
from benchmarks.learning.runs import InjectedRuns, RealRuns
from rollog.run.creation import complete
from rollog.settings.sources import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.learning.cells import Cell, Measured, Runs
    from benchmarks.learning.request import Request
    from rollog.settings.settings import Settings

_files = ("model.path", "data.train", "data.held_out", "reward.function")
"""Keys that name what the demo has prepared: every run gets the same."""


def measure_learning(
    request: Request,
    settings: Settings,
    known: Runs,
    *,
    home: Path,
    on_progress: Callable[[str], None],
    on_runs: Callable[[Runs], None],
) -> Runs:
    """All runs asked for, of which those in `known` are not made again; `on_runs` has them all after each.

    Raises ChildFailed, EngineError when a run diverges, DataError when nothing can be learnt from.
    """

    def on_measured(cell: Cell, runs: Runs) -> None:
        found = runs[cell]
        on_progress(
            f"{cell.variant.name}, seed {cell.seed}: greedy {found.final_accuracy:.3f}, "
            f"sampled {found.sampled_accuracy:.3f} in {found.seconds:.0f} s"
        )
        on_runs(runs)

    missing = [cell for cell in request.cells() if cell not in known]
    with ExitStack() as stack:
        needed = {cell.variant.part for cell in missing}
        return measure(missing, known, _makers(request, settings, home, stack, needed), on_measured)


def complete_settings(request: Request, home: Path) -> Settings:
    """The demo's settings with what is asked for, and with its model and data, which are prepared below `home`."""
    assignments = [f"{name}={value}" for name, value in request.assignments.items()]
    return complete(load_settings(assignments=assignments), home, lambda _what, _fraction: None)


def what_is_learnt(settings: Settings) -> dict[str, object]:
    """The settings that runs must share to stand in one file; files and the algorithm's type are not among them.

    Nor is who else may write samples, which nobody does in a benchmark, or when a run is given up.
    """
    return {
        "run.num_steps": settings.run.num_steps,
        **{
            f"{name}.{key}": value
            for name in ("groups", "sampling", "optimizer")
            for key, value in getattr(settings, name).model_dump(mode="json").items()
            if key not in {"other_writers", "max_untrained_in_a_row"}
        },
        "evaluation.num_prompts": settings.evaluation.num_prompts,
        "trainer.num_minibatches": settings.trainer.num_minibatches,
    }


def _makers(
    request: Request, settings: Settings, home: Path, stack: ExitStack, needed: set[Part]
) -> Mapping[Part, Callable[[Cell], Measured]]:
    """What makes the runs of each part; a Kafka is started where the real loop is needed."""
    makers: dict[Part, Callable[[Cell], Measured]] = {}
    if Part.INJECTED in needed:
        makers[Part.INJECTED] = InjectedRuns(settings).measure
    if Part.REAL in needed:
        sections = settings.model_dump()
        shared = {key: sections[section][name] for key in _files for section, name in [key.split(".")]}
        kafka = stack.enter_context(own_kafka(home))
        makers[Part.REAL] = RealRuns(kafka, {**request.assignments, **shared}).measure
    return makers
