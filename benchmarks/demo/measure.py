"""The demo over several run seeds, and its negative control: `rollog up` as a user runs it, and what it wrote.

Each run is a process of its own with real parts (embedded Apache Kafka, vLLM, DeepSpeed). Printed and saved are the
means of what `summary.json` says, beside the targets. The control gives each training sample the reward of another.

Seconds depend on the machine, so each run is followed by the bare single-process loop of
`benchmarks.demo.bare_learning` on the same settings and seed: `demo.step_over_bare` is the ratio of the two times per
step. Where the limit of 1.0 s per step was set, such a loop took 0.31 s, so that the limit as a ratio is 3.2.
"""

from __future__ import annotations

import time
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from benchmarks.demo import bare_learning
from benchmarks.harness.example_runs import Summary, run_example
from benchmarks.harness.figures import Figure
from rollog.demo.prepare import prepare
from rollog.settings.sources import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

greedy_target, sampled_target, start_limit, step_limit_seconds, control_limit = 0.92, 0.88, 0.55, 1.0, 0.05
bare_limit_ratio = 3.2


def measure_demo(
    *, seeds: Iterable[int], control_seeds: Iterable[int], home: Path, on_progress: Callable[[str], None]
) -> tuple[list[Figure], dict[str, object]]:
    """All figures, and the summaries they come from as entries of a results file.

    Raises:
        CalledProcessError: a run ended with another exit status than 0.
        DataError: a run's summary breaks what must hold of any run.
    """
    mark = time.strftime("%m%d%H%M%S")
    runs, bare = [], []
    for seed in seeds:
        runs.append(run_example(home, f"demo-{seed}-{mark}", {"run.seed": seed}))
        bare.append(bare_step_seconds(home, seed))
        on_progress(f"seed {seed}: held-out accuracy {runs[-1]['held_out_after']:.3f}")
    controls = [
        run_example(home, f"control-{seed}-{mark}", {"run.seed": seed, "reward.control": "shuffled"})
        for seed in control_seeds
    ]
    return figures_of(runs, bare, controls), {
        "runs": runs,
        "bare_step_seconds": bare,
        "controls": controls,
    }


def bare_step_seconds(home: Path, seed: int) -> float:
    """Seconds per step of the bare loop: of its processor, as it computes on one thread."""
    torch.set_num_threads(1)
    settings = load_settings()
    outcome = bare_learning.learn(prepare(home / "cache", seed=0), settings, seed=seed, lag=1, shuffled=False)
    return (outcome.generation_seconds + outcome.training_seconds) / settings.run.num_steps


def figures_of(runs: Sequence[Summary], bare: Sequence[float], controls: Sequence[Summary]) -> list[Figure]:
    """Means over seeds."""

    def mean(key: str, of: Sequence[Summary] = runs) -> float:
        return fmean(each[key] for each in of)

    found = [
        figure(
            "demo.held_out_before", mean("held_out_before"), "accuracy", start_limit, higher_is_better=False
        ),
        figure("demo.held_out_after", mean("held_out_after"), "accuracy", greedy_target),
        figure("demo.held_out_before_sampled", mean("held_out_before_sampled"), "accuracy"),
        figure("demo.held_out_after_sampled", mean("held_out_after_sampled"), "accuracy", sampled_target),
        figure("demo.command", mean("command_seconds"), "s", higher_is_better=False),
        figure("demo.tokens_per_second", mean("tokens_per_second"), "tokens/s"),
        figure("demo.samples_produced", mean("samples_produced"), "samples"),
    ]
    for part in runs[0]["step_seconds"]:
        limit = step_limit_seconds if part == "total" else None
        seconds = fmean(each["step_seconds"][part] for each in runs)
        found.append(figure(f"demo.step.{part}", seconds, "s/step", limit, higher_is_better=False))
    ratios = [run["step_seconds"]["total"] / seconds for run, seconds in zip(runs, bare, strict=True)]
    found.append(figure("demo.bare_step", fmean(bare), "s/step", higher_is_better=False))
    found.append(
        figure("demo.step_over_bare", fmean(ratios), "ratio", bare_limit_ratio, higher_is_better=False)
    )
    if controls:
        for suffix in ("", "_sampled"):
            rise = mean(f"held_out_after{suffix}", controls) - mean(f"held_out_before{suffix}", controls)
            name = f"control.held_out{suffix}_rise"
            found.append(figure(name, rise, "accuracy", control_limit, higher_is_better=False))
    return found


def figure(
    name: str, value: float, unit: str, target: float | None = None, *, higher_is_better: bool = True
) -> Figure:
    """One measured figure."""
    return Figure(
        name=name, value=round(value, 4), unit=unit, target=target, higher_is_better=higher_is_better
    )
