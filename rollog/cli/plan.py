"""`rollog plan`: how to share devices out between generating and training, and what alpha brings."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from rollog.cli.json_file import json_option, write_json
from rollog.cli.options import common_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from consumers.durations import Durations
    from rollog.planning.advice import Advice, PlayedPlan
    from rollog.planning.protocol_simulation import GroupRules
    from rollog.planning.sizing import Workload
    from rollog.run.recorded_run import RecordedRun
    from rollog.run.request import RunRequest

_alphas = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)

_flags: dict[str, tuple[str, Any, str]] = {
    "mean_seconds": ("--mean-seconds", float, "Mean seconds in which a rollout generates, and holds a slot."),
    "max_seconds": ("--max-seconds", float, "Seconds in which the longest rollout generates."),
    "train_seconds_per_sample": (
        "--train-seconds-per-sample",
        float,
        "Seconds in which one device trains on one sample, once.",
    ),
    "batch": ("--batch", int, "Samples trained in one step: groups_per_batch x group_size."),
    "alpha": ("--alpha", float, "Asynchronous ratio."),
    "num_devices": ("--devices", int, "Devices to share out."),
    "group_size": (
        "--group-size",
        int,
        "Samples of one prompt; 8 without a run, or less where --batch is no multiple.",
    ),
    "num_epochs": ("--epochs", int, "How often a step trains on each sample; 1 without a run."),
    "slots_per_device": ("--slots-per-device", int, "Rollouts in flight on one device; 1 without a run."),
    "rollouts_per_sample": (
        "--rollouts-per-sample",
        float,
        "Rollouts made for each one trained; 1 without a run.",
    ),
    "score_seconds": (
        "--score-seconds",
        float,
        "Mean seconds until a generated rollout has its reward; 0 without a run.",
    ),
}
_default_group_size = 8
_optional = ("group_size", "num_epochs", "slots_per_device", "rollouts_per_sample", "score_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a recorded run says, how many rollouts a worker has in flight, and how the run treats its groups."""

    run: str
    times: Durations
    slots_per_device: int
    group_size: int
    rules: GroupRules


def _workload_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, (flag, kind, text) in reversed(_flags.items()):
        function = click.option(flag, name, type=kind, help=text)(function)
    return function


@click.command()
@_workload_options
@json_option
@common_options
def plan(options: RunRequest, json_path: Path | None, **flags: float | None) -> None:
    """Say how many devices should generate and how many should train, and what alpha brings.

    The times come from the flags or, with --run, from the records of that run; flags win. --devices is always
    needed. The protocol is played with the run's rollout times, or with log-normal ones of the given mean and
    maximum, at many splits; the split with the shortest step is advised. docs/planning.md derives the bounds that
    are shown beside it and says what both leave out.

    Consumes steps and samples of the run, finished or not; produces nothing on the log.
    """
    measured = None if options.run is None else _measure(options)
    workload = workload_of(flags, measured)
    played = played_plan(workload, measured, alphas=(*_alphas, workload.alpha))
    for line in plan_lines(played, workload, measured):
        click.echo(line)
    if json_path is not None:
        write_json(json_path, figures_of(played, workload, measured))


def workload_of(flags: dict[str, float | None], measured: Measured | None) -> Workload:
    """The workload of flags and, where they are silent, of a run. Raises ConfigError for what is missing or wrong."""
    from rollog.kernel.errors import ConfigError  # noqa: PLC0415
    from rollog.planning.sizing import Workload  # noqa: PLC0415

    known = dict(_recorded(measured)) if measured is not None else {}
    known |= {name: value for name, value in flags.items() if value is not None}
    if "batch" in known and known["batch"] >= 1:
        known.setdefault("group_size", math.gcd(int(known["batch"]), _default_group_size))
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


def played_plan(workload: Workload, measured: Measured | None, *, alphas: Iterable[float]) -> PlayedPlan:
    """Play the protocol at these alphas, on the durations of the run unless flags replace them."""
    from rollog.planning.advice import advise, synthetic_groups, whole_groups  # noqa: PLC0415  # help needs none of it
    from rollog.planning.protocol_simulation import GroupRules  # noqa: PLC0415

    rules = GroupRules() if measured is None else measured.rules
    # What a run made in excess is known better, by group; what a flag says holds for all of it.
    if measured is None or workload.rollouts_per_sample != measured.times.rollouts_per_sample:
        rules = replace(rules, pass_share=1 / workload.rollouts_per_sample)
    if measured is not None and _plays_recorded(workload, measured):
        durations = whole_groups(measured.times.seconds_by_group, workload.group_size)
    else:
        durations = synthetic_groups(workload, rules)
    publish_seconds = 0.0 if measured is None else measured.times.publish_seconds or 0.0
    return advise(durations, workload, alphas, rules=rules, publish_seconds=publish_seconds)


def figures_of(played: PlayedPlan, workload: Workload, measured: Measured | None) -> dict[str, Any]:
    """Everything the command says, as `--json` writes it; seconds unless a name says otherwise."""
    from rollog.planning.sizing import proposition_share, proposition_step_seconds  # noqa: PLC0415

    advice = played.by_alpha[workload.alpha]
    plan = advice.plan
    return {
        "run": None if measured is None else measured.run,
        "workload": asdict(workload),
        "advice": _advised(advice),
        "completion_seconds": plan.completion_seconds,
        "synchronous": {"turns_seconds": plan.turns_seconds, "split": asdict(plan.synchronous)},
        "asynchronous": {
            "exact": asdict(plan.exact),
            "whole": asdict(plan.whole),
            "speedup": plan.speedup,
            "speedup_limit": plan.speedup_limit,
        },
        "proposition_2": {
            "beta": proposition_share(workload),
            "step_seconds_at_most": proposition_step_seconds(workload),
        },
        "by_alpha": [
            {**_advised(each), "split": asdict(each.bounds)} for _, each in sorted(played.by_alpha.items())
        ],
        "simulated": {
            "durations": _kind_of_durations(workload, measured),
            "turns_seconds": played.turns_seconds,
            "num_train_devices": advice.equation.num_train_devices,
            "step_seconds": advice.equation.step_seconds,
            "best_num_train_devices": advice.advised.num_train_devices,
            "best_step_seconds": advice.advised.step_seconds,
        },
    }


def plan_lines(played: PlayedPlan, workload: Workload, measured: Measured | None) -> Iterator[str]:
    """The figures for a terminal: the workload, one sentence of advice, one table."""
    advice = played.by_alpha[workload.alpha]
    of_run = "" if measured is None else f" (run {measured.run})"
    yield (
        f"workload{of_run}: rollouts of {workload.mean_seconds:.4g} s, at most {workload.max_seconds:.4g} s, scored in "
        f"{workload.score_seconds:.3g} s; "
        f"training {workload.train_seconds_per_sample:.4g} s a sample, {workload.num_epochs} time(s); "
        f"{workload.batch} samples a step, {workload.group_size} of a prompt, from {workload.num_rollouts:.6g} "
        f"rollouts; {workload.num_devices} devices of {workload.slots_per_device} slot(s)"
    )
    yield (
        f"advice: {advice.advised.num_rollout_devices} devices generate and {advice.advised.num_train_devices} train; "
        f"at alpha {advice.alpha:g} a step then takes {advice.advised.step_seconds:.4g} s, {advice.speedup:.2f} "
        f"times as fast as all devices taking turns ({played.turns_seconds:.4g} s)"
    )
    kind = _kind_of_durations(workload, measured)
    yield f"each alpha with its best split, by playing the protocol on {kind} rollout times, and two bounds:"
    yield from _table(played)


def _table(played: PlayedPlan) -> Iterator[str]:
    from rollog.planning.sizing import proposition_step_seconds  # noqa: PLC0415

    yield (
        f"{'alpha':>6} {'generate':>9} {'train':>6} {'step s':>8} {'speed-up':>9} {'equation s':>11} {'paper s':>8}"
    )
    for alpha, each in sorted(played.by_alpha.items()):
        split = each.advised
        yield (
            f"{alpha:>6g} {split.num_rollout_devices:>9} {split.num_train_devices:>6} "
            f"{split.step_seconds:>8.4g} {each.speedup:>9.2f} {each.plan.exact.step_seconds:>11.4g} "
            f"{proposition_step_seconds(each.plan.workload):>8.4g}"
        )


def _advised(advice: Advice) -> dict[str, float]:
    return {"alpha": advice.alpha, "speedup": advice.speedup, **asdict(advice.advised)}


def _plays_recorded(workload: Workload, measured: Measured) -> bool:
    recorded = (measured.times.mean_seconds, measured.times.max_seconds)
    return recorded == (workload.mean_seconds, workload.max_seconds)


def _kind_of_durations(workload: Workload, measured: Measured | None) -> str:
    return "recorded" if measured is not None and _plays_recorded(workload, measured) else "log-normal"


def _measure(options: RunRequest) -> Measured:
    from rollog.run.recorded_run import open_run  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.request import RecordedRunRequest  # noqa: PLC0415

    with open_run(RecordedRunRequest(run=options.run, archive=None, common=options)) as run:
        return _measured_in(run)


def _measured_in(run: RecordedRun) -> Measured:
    from consumers.durations import measure_durations  # noqa: PLC0415  # help needs no Kafka
    from rollog.planning.protocol_simulation import GroupRules  # noqa: PLC0415

    groups, freshness = run.settings.groups, run.settings.freshness
    times = measure_durations(run.broker, run.topics)
    return Measured(
        run=run.manifest.run,
        times=times,
        slots_per_device=run.settings.rollout.capacity,
        group_size=groups.group_size,
        rules=GroupRules(
            redundant_replicas=groups.redundant_replicas,
            redundant_groups=groups.redundant_groups,
            protect_after=freshness.protect_after,
            pass_share=times.pass_share or 1.0,
        ),
    )


def _recorded(measured: Measured) -> Iterator[tuple[str, float]]:
    """What the run tells, under the names of a workload."""
    yield "slots_per_device", measured.slots_per_device
    yield "group_size", measured.group_size
    for name in _flags:
        value = getattr(measured.times, name, None)
        if value is not None:
            yield name, value


def _with_flag_names(text: str) -> str:
    for name, (flag, _, _) in _flags.items():
        text = text.replace(f"{name} =", f"{flag} =")
    return text
