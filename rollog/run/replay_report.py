"""What a replay or a counterfactual found, for a terminal and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer.checkpoints import Checkpoint
    from trainer.engines.ports import EngineDescription
    from trainer.recorded.counterfactual import CounterfactualStep
    from trainer.recorded.environment import EnvironmentComparison
    from trainer.recorded.redo import Recording
    from trainer.recorded.replay import ReplayedStep

_curves = ("clip_fraction", "divergence", "effective_sample_size")
_no_figure = "-"


def replay_line(step: ReplayedStep) -> str:
    """One replayed step for a terminal."""
    if not step.differing:
        return (
            f"version {step.version}: equal, sha256 {step.weights_sha256[:16]}, "
            f"loss {_mean(step.losses):.6g}, gradient norm {_mean(step.gradient_norms):.6g}"
        )
    distance = step.distance
    weights = (
        f"; weights apart by at most {distance.max_absolute:.3g}, relative {distance.relative:.3g}"
        if distance is not None
        else ""
    )
    return (
        f"version {step.version}: DIFFERS in {', '.join(step.differing)}: sha256 {step.weights_sha256[:16]} here, "
        f"{step.recorded_sha256[:16]} recorded{weights}; loss apart by {_figure(step.loss_difference)}, gradient norm "
        f"by {_figure(step.gradient_norm_difference)}"
    )


def verdict_line(steps: list[ReplayedStep], environment: EnvironmentComparison) -> str:
    """What a replay found; equal only where every step is."""
    wrong = [step for step in steps if step.differing]
    if not wrong:
        return f"EQUAL: {len(steps)} step(s) replayed, all as recorded"
    recorded, here = steps[0].ranks
    if recorded != here:
        farthest = max((step.distance.relative for step in steps if step.distance is not None), default=0.0)
        return (
            f"NOT COMPARED FOR EQUALITY: recorded on {recorded} rank(s), replayed on {here}: gradients are summed in "
            f"another order, so only distances say something; weights apart by at most {farthest:.3g}, relative, in "
            f"{len(steps)} step(s)"
        )
    return (
        f"DIFFERENT: {len(wrong)} of {len(steps)} step(s), the first is that of version {wrong[0].version}; "
        f"{environment.cause}"
    )


def curve_lines(steps: list[CounterfactualStep]) -> Iterator[str]:
    """Recorded and counterfactual curves side by side."""
    names = ("loss", "gradient norm", *_curves)
    yield f"{'version':>7}  " + "  ".join(f"{name:>24}" for name in names)
    for step in steps:
        pairs = [
            (step.recorded.loss, step.counterfactual.loss),
            (step.recorded.gradient_norm, step.counterfactual.gradient_norm),
            *(
                (step.recorded.statistics.get(name), step.counterfactual.statistics.get(name))
                for name in _curves
            ),
        ]
        cells = (f"{_figure(there)} -> {_figure(here)}" for there, here in pairs)
        yield f"{step.version:>7}  " + "  ".join(f"{cell:>24}" for cell in cells)


def replay_report(
    recording: Recording,
    here: EngineDescription,
    checkpoint: Checkpoint | None,
    steps: list[ReplayedStep],
    environment: EnvironmentComparison,
) -> dict[str, Any]:
    """A replay as `--json` writes it; `here` is the engine that it was trained on."""
    wrong = [step.version for step in steps if step.differing]
    return {
        "kind": "replay",
        "run": recording.topics.run,
        "ledger_head": recording.history.state.head.hex(),
        "checkpoint": None if checkpoint is None else checkpoint.name,
        "equal": not wrong,
        "first_differing_version": wrong[0] if wrong else None,
        "device": here.device,
        "environment_differences": {
            name: {"recorded": then, "here": now} for name, (then, now) in environment.differences.items()
        },
        "environment_not_recorded": list(environment.not_recorded),
        "steps": [step.figures() for step in steps],
    }


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values) if values else 0.0


def _figure(value: float | None) -> str:
    return _no_figure if value is None else f"{value:.4g}"
