"""An example over several run seeds, and its negative control: `rollog up` as a user runs it, and what it wrote.

Each run is a process of its own with real parts: Apache Kafka, vLLM, DeepSpeed, environments in their processes.
The control gives each training episode the reward of another.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import rollog
from benchmarks.harness.demo_run import set_options
from benchmarks.harness.figures import Figure, mean_figure
from rollog.kernel.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

Summary = dict[str, Any]

control_limit = 0.05


def measure_example(
    name: str,
    config: Path,
    *,
    seeds: Iterable[int],
    control_seeds: Iterable[int],
    home: Path,
    on_progress: Callable[[str], None],
) -> tuple[list[Summary], list[Summary]]:
    """Summaries of the runs of `config` and of its controls, each audited.

    Raises:
        CalledProcessError: a run ended with another exit status than 0.
        DataError: a run's summary breaks what must hold of any run, or its audit finds something.
    """
    mark = time.strftime("%m%d%H%M%S")

    def summaries(kind: str, numbers: Iterable[int], settings: Mapping[str, object]) -> Iterator[Summary]:
        for seed in numbers:
            run = f"{kind}-{seed}-{mark}"
            summary = run_example(home, run, {"run.seed": seed, **settings}, config)
            on_progress(f"{kind} {seed}: held-out reward {summary['held_out_after']:.3f}")
            yield summary | recorded(home, run)

    runs = list(summaries(name, seeds, {}))
    return runs, list(summaries(f"{name}-control", control_seeds, {"reward.control": "shuffled"}))


def run_example(
    home: Path, name: str, assignments: Mapping[str, object], config: Path | None = None
) -> Summary:
    """One run to its end, of the demo or of `config`; its summary with the seconds of the whole command."""
    command = [sys.executable, "-m", "rollog.cli.main", "up", "--plain", "--home", str(home), "--run", name]
    command += [] if config is None else ["--config", str(config)]
    started = time.monotonic()
    subprocess.run([*command, *set_options(assignments)], check=True, stdout=subprocess.DEVNULL)
    summary: Summary = json.loads((home / "runs" / name / "summary.json").read_text())
    check(summary)
    return summary | {"command_seconds": round(time.monotonic() - started, 1)}


def recorded(home: Path, run: str) -> Summary:
    """What the log of a run says that is over, once it is audited: sampled tokens of an episode, by step.

    Raises DataError where the audit finds something.
    """
    with rollog.open_run(run, home=home) as opened:
        report = opened.audit()
        if not report.is_clean:
            raise DataError("\n".join(report.lines()))
        lengths = [round(row["num_tokens"] / row["num_samples"], 2) for row in opened.steps()]
    checked = {each.name: each.num_checked for each in report.checks}
    return {"audit_checked": checked, "tokens_by_step": lengths}


def check(summary: Summary) -> None:
    """What must hold of any run, whatever it learnt. Raises DataError."""
    holds = {
        "vLLM and DeepSpeed": (summary["engine"], summary["trainer"]) == ("vllm", "deepspeed"),
        "a disposition for every sample": sum(summary["samples_by_disposition"].values())
        == summary["samples_produced"],
        "no sample older than alpha": summary["max_lag"] <= summary["alpha"],
    }
    broken = [what for what, is_so in holds.items() if not is_so]
    if broken:
        raise DataError(f"the run's summary does not show {', '.join(broken)}: {summary}")


def learning_figures(name: str, runs: Sequence[Summary], controls: Sequence[Summary]) -> list[Figure]:
    """Held-out rewards before and after, the rise of the controls, and seconds of a step; means over seeds."""
    found = []
    for suffix in ("", "_sampled"):
        for moment in ("before", "after"):
            values = [float(run[f"held_out_{moment}{suffix}"]) for run in runs]
            found.append(mean_figure(f"{name}.held_out_{moment}{suffix}", "reward", values))
        rises = [each[f"held_out_after{suffix}"] - each[f"held_out_before{suffix}"] for each in controls]
        if rises:
            rise = f"{name}.control{suffix}_rise"
            found.append(mean_figure(rise, "reward", rises, target=control_limit, higher_is_better=False))
    seconds = [run["step_seconds"]["total"] for run in runs]
    found.append(mean_figure(f"{name}.step", "s/step", seconds, higher_is_better=False))
    return found
