"""`rollog plan`: how to share devices out between generating and training, and what alpha brings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from rollog.cli.json_file import json_option, write_json
from rollog.cli.options import CommonOptions, common_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from consumers.durations import Durations
    from rollog.planning.sizing import DeviceSplit, Plan, Workload

_alphas = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)

_flags: dict[str, tuple[str, Any, str]] = {
    "mean_seconds": ("--mean-seconds", float, "Mean seconds of a rollout, its reward included."),
    "max_seconds": ("--max-seconds", float, "Seconds of the longest rollout."),
    "train_seconds_per_sample": (
        "--train-seconds-per-sample",
        float,
        "Seconds in which one device trains on one sample, once.",
    ),
    "batch": ("--batch", int, "Samples trained in one step: groups_per_batch x group_size."),
    "alpha": ("--alpha", float, "Asynchronous ratio."),
    "num_devices": ("--devices", int, "Devices to share out."),
    "num_epochs": ("--epochs", int, "How often a step trains on each sample; 1 without a run."),
    "slots_per_device": ("--slots-per-device", int, "Rollouts in flight on one device; 1 without a run."),
    "rollouts_per_sample": (
        "--rollouts-per-sample",
        float,
        "Rollouts made for each one trained; 1 without a run.",
    ),
}
_optional = ("num_epochs", "slots_per_device", "rollouts_per_sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a recorded run says, and how many rollouts its workers had in flight."""

    run: str
    times: Durations
    slots_per_device: int


def _workload_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, (flag, kind, text) in reversed(_flags.items()):
        function = click.option(flag, name, type=kind, help=text)(function)
    return function


@click.command()
@_workload_options
@json_option
@common_options
def plan(options: CommonOptions, json_path: Path | None, **flags: float | None) -> None:
    """Say how many devices should generate and how many should train, and what alpha brings.

    The times come from the flags or, with --run, from the records of that run; flags win. --devices is always
    needed. Of a recorded run the best split is also found by playing its rollout times through. docs/planning.md
    derives the formulas and says what they leave out.

    Consumes steps and samples of the run, finished or not; produces nothing on the log.
    """
    from rollog.planning.sizing import plan_devices, with_alpha  # noqa: PLC0415  # help needs none of it

    measured = None if options.run is None else _measure(options)
    workload = workload_of(flags, measured)
    plans = {alpha: plan_devices(with_alpha(workload, alpha)) for alpha in (*_alphas, workload.alpha)}
    figures = figures_of(plans, workload, measured)
    for line in plan_lines(plans, workload, figures):
        click.echo(line)
    if json_path is not None:
        write_json(json_path, figures)


def workload_of(flags: dict[str, float | None], measured: Measured | None) -> Workload:
    """The workload of flags and, where they are silent, of a run. Raises ConfigError for what is missing or wrong."""
    from rollog.kernel.errors import ConfigError  # noqa: PLC0415
    from rollog.planning.sizing import Workload  # noqa: PLC0415

    known = dict(_recorded(measured)) if measured is not None else {}
    known |= {name: value for name, value in flags.items() if value is not None}
    missing = [flag for name, (flag, _, _) in _flags.items() if name not in known and name not in _optional]
    if missing:
        source = (
            "and no run is named: give them, or --run NAME of a recorded run"
            if measured is None
            else f"and the records of run {measured.run} do not tell: give them"
        )
        raise ConfigError(f"{', '.join(missing)} missing {source}")
    try:
        return Workload(**known)  # type: ignore[arg-type]  # click has typed the flags
    except ValueError as error:
        raise ConfigError(_with_flag_names(str(error))) from error


def figures_of(plans: dict[float, Plan], workload: Workload, measured: Measured | None) -> dict[str, Any]:
    """Everything the command says, as `--json` writes it; seconds unless a name says otherwise."""
    plan = plans[workload.alpha]
    return {
        "run": None if measured is None else measured.run,
        "workload": asdict(workload),
        "completion_seconds": plan.completion_seconds,
        "synchronous": {"turns_seconds": plan.turns_seconds, "split": asdict(plan.synchronous)},
        "asynchronous": {
            "exact": asdict(plan.exact),
            "whole": asdict(plan.whole),
            "speedup": plan.speedup,
            "speedup_limit": plan.speedup_limit,
        },
        "by_alpha": [
            {"alpha": alpha, "speedup": each.speedup, **asdict(each.whole)}
            for alpha, each in sorted(plans.items())
        ],
        "simulated": None if measured is None else _simulated(plan, measured),
    }


def plan_lines(plans: dict[float, Plan], workload: Workload, figures: dict[str, Any]) -> Iterator[str]:
    """The figures for a terminal."""
    plan = plans[workload.alpha]
    of_run = f" (run {figures['run']})" if figures["run"] else ""
    yield (
        f"workload{of_run}: rollouts of {workload.mean_seconds:.4g} s, at most {workload.max_seconds:.4g} s; "
        f"training {workload.train_seconds_per_sample:.4g} s a sample, {workload.num_epochs} time(s); "
        f"{workload.batch} samples a step from {workload.num_rollouts:.6g} rollouts; "
        f"{workload.num_devices} devices of {workload.slots_per_device} slot(s)"
    )
    yield f"rollouts of one step on all devices: done within {plan.completion_seconds:.4g} s"
    yield f"synchronous, all devices taking turns: step within {plan.turns_seconds:.4g} s"
    yield f"synchronous, {_devices(plan.synchronous)}: step within {plan.synchronous.split.step_seconds:.4g} s"
    if workload.alpha > 0:
        yield (
            f"asynchronous, alpha {workload.alpha:g}, {_devices(plan.whole)} (beta {plan.exact.beta:.4f}): "
            f"step {plan.whole.split.step_seconds:.4g} s predicted, {plan.whole.split.step_seconds_at_most:.4g} s "
            f"at most; {plan.speedup:.2f}x of taking turns, {plan.speedup_limit:.2f}x as alpha grows"
        )
    if figures["simulated"] is not None:
        yield _simulated_line(figures["simulated"])
    yield f"{'alpha':>6} {'rollout':>8} {'train':>6} {'step s':>10} {'at most s':>10} {'speed-up':>9}"
    for alpha, each in sorted(plans.items()):
        split = each.whole.split
        yield (
            f"{alpha:>6g} {each.whole.num_rollout_devices:>8} {each.whole.num_train_devices:>6} "
            f"{split.step_seconds:>10.4g} {split.step_seconds_at_most:>10.4g} {each.speedup:>9.2f}"
        )


def _measure(options: CommonOptions) -> Measured:
    from consumers.durations import measure_durations  # noqa: PLC0415
    from rollog.kernel.broker.topics import RunTopics  # noqa: PLC0415
    from rollog.run.joining import join_run  # noqa: PLC0415

    run = join_run(options, wait_seconds=0.0)
    return Measured(
        run=run.manifest.run,
        times=measure_durations(run.broker, RunTopics(run.manifest.prefix, run.manifest.run)),
        slots_per_device=run.settings.rollout.capacity,
    )


def _recorded(measured: Measured) -> Iterator[tuple[str, float]]:
    """What the run tells, under the names of a workload."""
    yield "slots_per_device", measured.slots_per_device
    for name in _flags:
        value = getattr(measured.times, name, None)
        if value is not None:
            yield name, value


def _simulated(plan: Plan, measured: Measured) -> dict[str, float] | None:
    """The planned split and the best one, played through on the run's rollout times; None where flags replace them."""
    from rollog.planning.step_simulation import best_simulated_split, simulated_step_seconds  # noqa: PLC0415

    durations, workload = measured.times.rollout_seconds, plan.workload
    recorded = (measured.times.mean_seconds, measured.times.max_seconds)
    if recorded != (workload.mean_seconds, workload.max_seconds):
        return None
    best, seconds = best_simulated_split(durations, workload)
    return {
        "num_train_devices": plan.whole.num_train_devices,
        "step_seconds": simulated_step_seconds(durations, workload, plan.whole.num_train_devices),
        "best_num_train_devices": best,
        "best_step_seconds": seconds,
    }


def _simulated_line(simulated: dict[str, float]) -> str:
    return (
        f"played through on the run's rollouts: step {simulated['step_seconds']:.4g} s with "
        f"{simulated['num_train_devices']} device(s) training; best {simulated['best_step_seconds']:.4g} s with "
        f"{simulated['best_num_train_devices']}"
    )


def _devices(split: DeviceSplit) -> str:
    return f"{split.num_rollout_devices} generating + {split.num_train_devices} training"


def _with_flag_names(text: str) -> str:
    for name, (flag, _, _) in _flags.items():
        text = text.replace(f"{name} =", f"{flag} =")
    return text
