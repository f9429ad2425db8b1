"""How long publishing and checkpoints hold training up, beside the next step and inside its own, in whole runs."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, mean_figure
from benchmarks.weights.floors import copy_seconds
from benchmarks.weights.large_engines import checkpoint_bytes, table_of
from benchmarks.weights.large_runs import (
    Way,
    a_job,
    settling_steps,
    steps_between_checkpoints,
    steps_of,
)
from benchmarks.weights.parts import ways_beside
from rollog.kernel.versions.chains import cumulative_every
from rollog.kernel.versions.tensors import total_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape

published_seconds = 5.0
"""Of a step, in place of an accelerator's work."""
published_steps = cumulative_every + settling_steps
"""The version that is stored as changes since the full form as well takes longest: one of so many is."""
largest_held = 0.08


def measure_beside(
    *,
    shape: ModelShape,
    home: Path,
    seed: int,
    on_progress: Callable[[str], None],
    names: Sequence[str] = tuple(ways_beside),
    step_seconds: float = published_seconds,
    num_steps: int = published_steps,
) -> list[Figure]:
    """Each way of those names in a run of its own; what a copy of the bytes takes stands beside them."""
    num_bytes = total_bytes(table_of(shape))
    seconds_of_a_copy = copy_seconds(num_bytes)
    on_progress(f"{num_bytes / 1e9:.2f} GB of weights, copied in {seconds_of_a_copy:.3f} s")
    figures = [
        Figure(
            name="weights.beside.copy",
            value=seconds_of_a_copy,
            unit="s for one copy of the bytes",
            higher_is_better=False,
        )
    ]
    for name in names:
        way = Way(shape=shape, **ways_beside[name])
        steps = num_steps - settling_steps + way.settling_steps
        job = a_job("beside", step_seconds=step_seconds, num_steps=steps, seed=seed)
        found = steps_of(job, way, home)
        copies = 1 + (checkpoint_bytes / 2 / steps_between_checkpoints if way.checkpoints else 0)
        on_progress(
            f"{name}: {fmean(found.held_shares):.3f} of a step, {fmean(found.busy_seconds):.2f} s a step"
        )
        figures += [
            mean_figure(
                f"weights.beside.{name}.held",
                f"share of a step of {step_seconds:g} s in which {_what(way)} training up",
                found.held_shares,
                target=largest_held if way.beside else None,
                ideal=copies * seconds_of_a_copy / step_seconds,
                higher_is_better=False,
            ),
            mean_figure(
                f"weights.beside.{name}.step",
                "s a step",
                found.busy_seconds,
                ideal=step_seconds,
                higher_is_better=False,
            ),
        ]
    return figures


def _what(way: Way) -> str:
    return "publishing and checkpoints hold" if way.checkpoints else "publishing holds"
