"""What publishing costs a run: its step rate beside that of a run whose weights have next to no bytes."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, ratio_figure
from benchmarks.harness.random_model import shapes
from benchmarks.weights.large_runs import Way, a_job, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape

published_seconds = 5.0
published_steps = 14
alphas = (0.0, 1.0, 2.0)
least_rate = 0.92
"""From alpha 1: publishing takes 8 % of a step at most. With 0 the next step waits for the version itself."""


def measure_rate(
    *,
    shape: ModelShape,
    home: Path,
    seed: int,
    on_progress: Callable[[str], None],
    step_seconds: float = published_seconds,
    num_steps: int = published_steps,
) -> list[Figure]:
    """For each alpha: full forms and patches, each beside a run of the same workload that publishes almost nothing."""
    figures = []
    for alpha in alphas:
        job = a_job("rate", step_seconds=step_seconds, num_steps=num_steps, seed=seed, alpha=alpha)
        ways = {
            "nothing": Way(shape=shapes["tiny"]),
            "patches": Way(shape=shape),
            "full": Way(shape=shape, patches=False),
        }
        seconds = {}
        for name, way in ways.items():
            seconds[name] = steps_of(job, way, home).seconds
            on_progress(f"alpha {alpha:g}, {name}: {fmean(seconds[name]):.2f} s a step")
        figures += [
            ratio_figure(
                f"weights.rate.alpha_{alpha:g}.{form}",
                "step rate / that of a run that publishes almost nothing",
                list(zip(seconds["nothing"], seconds[form], strict=True)),
                target=least_rate if alpha >= 1 and form == "patches" else None,
                ideal=1.0,
            )
            for form in ("patches", "full")
        ]
    return figures
