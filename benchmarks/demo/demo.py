"""The demo over several run seeds, and its negative control: `rollog up` as a user runs it, and what it wrote.

Each run is a process of its own with real parts (embedded Apache Kafka, vLLM, DeepSpeed). Printed and saved are the
means of what `summary.json` says, beside the targets. The control gives each training sample the reward of another.

Seconds depend on the machine, so each run is followed by the bare single-process loop of bare_learning.py on the same
settings and seed: `demo.step_over_bare` is the ratio of the two times per step. Where the limit of 1.0 s per step was
set, such a loop took 0.31 s, so that the limit as a ratio is 3.2.

    python benchmarks/demo/demo.py [--seeds 0 1 2] [--control-seeds 0] [--home DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.demo import bare_learning
from benchmarks.harness.figures import Figure
from rollog.demo.prepare import prepare

Summary = dict[str, Any]

greedy_target, sampled_target, start_limit, step_limit_seconds, control_limit = 0.92, 0.88, 0.55, 1.0, 0.05
bare_limit_ratio = 3.2


def run_demo(home: Path, name: str, *assignments: str) -> Summary:
    """One run to its end; returns its summary with the seconds of the whole command."""
    flags = [word for assignment in assignments for word in ("--set", assignment)]
    started = time.monotonic()
    subprocess.run(
        [
            sys.executable,
            "-m",
            "rollog.cli.main",
            "up",
            "--plain",
            "--home",
            str(home),
            "--run",
            name,
            *flags,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    summary: Summary = json.loads((home / "runs" / name / "summary.json").read_text())
    check(summary)
    return summary | {"command_seconds": round(time.monotonic() - started, 1)}


def bare_step_seconds(home: Path, seed: int) -> float:
    """Seconds per step of the bare loop: of its processor, as it computes on one thread."""
    torch.set_num_threads(1)
    settings = bare_learning.load_settings([])
    outcome = bare_learning.learn(prepare(home / "cache", seed=0), settings, seed=seed, lag=1, shuffled=False)
    return (outcome.generation_seconds + outcome.training_seconds) / settings.run.num_steps


def check(summary: Summary) -> None:
    """What must hold of any run, whatever it learnt."""
    assert (summary["engine"], summary["trainer"]) == ("vllm", "deepspeed"), summary
    assert sum(summary["samples_by_disposition"].values()) == summary["samples_produced"], summary
    assert summary["max_lag"] <= summary["alpha"], summary


def figures_of(runs: list[Summary], bare: list[float], controls: list[Summary]) -> list[Figure]:
    """Means over seeds."""

    def mean(key: str, of: list[Summary] = runs) -> float:
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
    for name in ("held_out", "held_out_sampled"):
        if controls:
            before, after = (
                name.replace("held_out", "held_out_before"),
                name.replace("held_out", "held_out_after"),
            )
            rise = mean(after, controls) - mean(before, controls)
            found.append(
                figure(f"control.{name}_rise", rise, "accuracy", control_limit, higher_is_better=False)
            )
    return found


def figure(
    name: str, value: float, unit: str, target: float | None = None, *, higher_is_better: bool = True
) -> Figure:
    """One measured figure."""
    return Figure(
        name=name, value=round(value, 4), unit=unit, target=target, higher_is_better=higher_is_better
    )


def main() -> None:
    """Run, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--control-seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--home", type=Path, default=Path(".rollog"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    mark = time.strftime("%m%d%H%M%S")
    runs, bare = [], []
    for seed in arguments.seeds:
        runs.append(run_demo(arguments.home, f"demo-{seed}-{mark}", f"run.seed={seed}"))
        bare.append(bare_step_seconds(arguments.home, seed))
    controls = [
        run_demo(arguments.home, f"control-{seed}-{mark}", f"run.seed={seed}", "reward.control=shuffled")
        for seed in arguments.control_seeds
    ]
    figures = figures_of(runs, bare, controls)
    for each in figures:
        print(each.line())
    machine = f"python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores"
    versions = ", ".join(f"{name} {version}" for name, version in sorted(runs[0]["versions"].items()))
    print(f"{machine}; {versions}; seeds {arguments.seeds}, control {arguments.control_seeds}")
    if arguments.json:
        record = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine,
            "versions": runs[0]["versions"],
            "command": f"python benchmarks/demo/demo.py --seeds {' '.join(map(str, arguments.seeds))} "
            f"--control-seeds {' '.join(map(str, arguments.control_seeds))}",
            "figures": [asdict(each) for each in figures],
            "runs": runs,
            "bare_step_seconds": bare,
            "controls": controls,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
