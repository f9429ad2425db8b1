"""Time to the demo's target accuracy, synchronous against asynchronous, on real engines.

Each run is `rollog up` in a process of its own, with vLLM and DeepSpeed on this machine and one Kafka for all; what
is compared is the trainer's time from its first step to the first evaluated version at or above the target, as the
ledger's step timings have it, so the start of the engines does not count. Every alpha sees the same seeds, in turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.demo_run import as_published, demo_run, held_out_accuracy
from benchmarks.harness.figures import Figure, ratio_figure
from rollog.kernel.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.harness.own_kafka import OwnKafka
    from schemas import StepTimings

evaluation_steps = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Held-out greedy accuracy over the trainer's time. `seconds[v]` is the time at which version v was committed."""

    seconds: tuple[float, ...]
    accuracy: Mapping[int, float]

    @property
    def step_seconds(self) -> float:
        """Mean time of a step."""
        return self.seconds[-1] / (len(self.seconds) - 1)

    def seconds_to(self, target: float) -> float | None:
        """Time of the first evaluated version at or above `target`; None where there is none."""
        reached = [version for version, value in sorted(self.accuracy.items()) if value >= target]
        return self.seconds[reached[0]] if reached else None


def curve_of(timings: Sequence[StepTimings], accuracy: Mapping[int, float]) -> Curve:
    """The curve of a run; the first step's waiting is left out, because it is the start of the engines."""
    steps = [
        (each.wait_seconds if number else 0.0)
        + each.train_seconds
        + each.publish_seconds
        + each.commit_seconds
        + each.checkpoint_seconds
        for number, each in enumerate(timings)
    ]
    return Curve(seconds=(0.0, *accumulate(steps)), accuracy=accuracy)


def figures_of(curves: Mapping[float, Sequence[Curve]], target: float) -> list[Figure]:
    """Times to `target` per alpha, and how many times faster than alpha 0, paired by seed. Raises DataError."""
    times = {alpha: [_reached(curve, alpha, target) for curve in each] for alpha, each in curves.items()}
    found = []
    for alpha, each in times.items():
        name = f"accuracy.alpha_{alpha:g}"
        step = fmean(curve.step_seconds for curve in curves[alpha])
        found += [
            Figure(name=f"{name}.seconds_to_target", value=fmean(each), unit="s", higher_is_better=False),
            Figure(name=f"{name}.step", value=step, unit="s/step", higher_is_better=False),
        ]
    for alpha, each in times.items():
        if alpha > 0:
            found.append(_speedup(f"accuracy.alpha_{alpha:g}.speedup", times[0.0], each))
            steps = [[curve.step_seconds for curve in curves[which]] for which in (0.0, alpha)]
            found.append(_speedup(f"accuracy.alpha_{alpha:g}.step_speedup", *steps))
    return found


def _speedup(name: str, synchronous: Sequence[float], asynchronous: Sequence[float]) -> Figure:
    pairs = list(zip(synchronous, asynchronous, strict=True))
    return ratio_figure(name, "times alpha 0", pairs)


def measure_accuracy(
    *,
    alphas: Sequence[float],
    seeds: Sequence[int],
    target: float,
    kafka: OwnKafka,
    on_progress: Callable[[str], None],
) -> list[Figure]:
    """Run everything and compare; `alphas` holds 0.

    Raises:
        ChildFailed: a run ended with another exit status than 0.
        DataError: a run never reached the target.
    """
    curves: dict[float, list[Curve]] = {alpha: [] for alpha in alphas}
    for seed in seeds:
        for alpha in alphas:
            run = f"accuracy-{alpha:g}-{seed}".replace(".", "-")
            assignments = {
                **as_published,
                "freshness.alpha": alpha,
                "run.seed": seed,
                "evaluation.every_steps": evaluation_steps,
                "evaluation.sampled": "false",
            }
            view = demo_run(kafka, run, assignments)
            curve = curve_of(view.step_timings, held_out_accuracy(view, "greedy"))
            curves[alpha].append(curve)
            accuracy = ", ".join(
                f"{version}: {value:.3f}" for version, value in sorted(curve.accuracy.items())
            )
            on_progress(f"alpha {alpha:g}, seed {seed}: {curve.step_seconds:.2f} s/step; held-out {accuracy}")
    return figures_of(curves, target)


def _reached(curve: Curve, alpha: float, target: float) -> float:
    seconds = curve.seconds_to(target)
    if seconds is None:
        raise DataError(
            f"a run with alpha {alpha:g} did not reach {target:g} within {len(curve.seconds) - 1} steps: "
            f"{dict(curve.accuracy)}; choose a lower --target"
        )
    return seconds
