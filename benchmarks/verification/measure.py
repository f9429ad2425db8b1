"""`rollog verify` of whole runs of the demo, as a user starts both, and how long it takes.

Generation took the seconds in which at least one rollout was under way, from the first one's start to the last one's
end, by the log. Verification takes what it says itself: from its first record to its last comparison, of which the
start of Python and of the model is no part; the whole command is measured as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.harness.demo_run import appended, prefix, run_up
from benchmarks.harness.figures import Figure, ratio_figure
from benchmarks.harness.time_breakdown import covered, generated
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ChildFailed
from schemas import Sample
from schemas.codec import decode_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.harness.own_kafka import OwnKafka

largest_ratio = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One run. `report` is what `rollog verify --json` wrote."""

    generation_seconds: float
    command_seconds: float
    report: dict[str, Any]

    @property
    def num_alarms(self) -> int:
        """Everything that was found."""
        return sum(len(self.report[name]) for name in ("findings", "foreign", "altered"))


def measure_verification(
    *, seeds: Iterable[int], kafka: OwnKafka, on_progress: Callable[[str], None]
) -> list[Figure]:
    """One run of the demo for each seed. Raises ChildFailed."""
    runs = []
    for seed in seeds:
        run = f"verification-{seed}"
        run_up(kafka, run, {"run.seed": seed})
        runs.append(_verify(kafka, run))
        found = runs[-1]
        on_progress(
            f"seed {seed}: generated in {found.generation_seconds:.1f} s, verified in {found.report['seconds']:.1f} s, "
            f"{found.num_alarms} alarm(s)"
        )
    return _figures(runs)


def _verify(kafka: OwnKafka, run: str) -> Verified:
    written = kafka.home / f"{run}.json"
    command = [sys.executable, "-m", "rollog.cli.main", "verify", run, "--home", str(kafka.home)]
    command += ["--broker", kafka.address, "--json", str(written)]
    began = time.monotonic()
    ended = subprocess.run(command, check=False, capture_output=True, text=True)  # our own
    seconds = time.monotonic() - began
    # Status 1 with a report is an alarm, which counts; without one it failed.
    if not written.exists():
        raise ChildFailed(f"verify of {run} ended with status {ended.returncode}:\n{ended.stderr[-4000:]}")
    return Verified(
        generation_seconds=_generation_seconds(kafka, RunTopics(prefix, run)),
        command_seconds=seconds,
        report=json.loads(written.read_text()),
    )


def _generation_seconds(kafka: OwnKafka, topics: RunTopics) -> float:
    intervals = [
        generated(decode_as(Sample, value), moment).interval
        for value, moment in appended(kafka.broker, topics.samples)
    ]
    return covered(intervals, (min(start for start, _ in intervals), max(end for _, end in intervals)))


def _figures(runs: Sequence[Verified]) -> list[Figure]:
    return [
        ratio_figure(
            "verification.over_generation",
            "verification / generation of the same run",
            [(run.report["seconds"], run.generation_seconds) for run in runs],
            target=largest_ratio,
            higher_is_better=False,
        ),
        ratio_figure(
            "verification.command_over_generation",
            "the whole command / generation of the same run",
            [(run.command_seconds, run.generation_seconds) for run in runs],
            higher_is_better=False,
        ),
        Figure(
            name="verification.false_alarms",
            value=sum(run.num_alarms for run in runs),
            unit=f"in {len(runs)} honest run(s)",
            target=0,
            higher_is_better=False,
        ),
        Figure(
            name="verification.incomplete",
            value=sum(not run.report["is_complete"] for run in runs),
            unit=f"of {len(runs)} run(s) had samples that could not be compared",
            target=0,
            higher_is_better=False,
        ),
        *(
            Figure(
                name=f"verification.{key}", value=fmean(run.report[f"num_{key}"] for run in runs), unit=unit
            )
            for key, unit in (("samples", "trained samples a run"), ("tokens", "tokens compared a run"))
        ),
    ]
