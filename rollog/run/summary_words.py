"""The end of a run in words and a small table, and the commands that go on from there."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rollog.kernel.addresses import public_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollog.run.request import RunRequest
    from rollog.run.summary import Summary
    from rollog.settings.settings import Settings

_width = 20
_reasons = {"num_steps": "all steps are done", "dataset_end": "the dataset is used up"}
_usual_prefix = "rollog"


def summary_lines(summary: Summary) -> list[str]:
    """The main figures for a terminal, one per line; what is not known has no line."""
    rows = {
        "held-out reward": _held_out(summary),
        "reward of a step": _rewards(summary),
        "samples": _samples(summary),
        "groups": _counted(_mapping(summary, "groups_by_outcome")),
        "largest lag": _lag(summary),
        "generated": _generated(summary),
        "a step": _step(_mapping(summary, "step_seconds")),
        "ledger head": str(summary["ledger_head"]) if _number(summary, "steps") else "",
    }
    return [_headline(summary), *(f"  {name:{_width}}{said}" for name, said in rows.items() if said)]


def next_commands(
    options: RunRequest, settings: Settings, *, has_model: bool, is_over: bool, program: str = "rollog"
) -> list[str]:
    """What can be done next, a command per line; `program` is how a shell finds it."""
    where = where_options(options, settings)
    name = shlex.quote(settings.run_name)
    commands = {
        f"{program} export {name} --model DIR{where}": "a model for transformers and vLLM",
        f"{program} audit {name}{where}": "check that nothing was lost, or trained twice",
    }
    if not has_model:
        commands = {}
    if not is_over:
        commands = {f"{program} resume {name}{where}": "go on with the run", **commands}
    widest = max(map(len, commands), default=0)
    return [f"  {command:{widest}}  {purpose}" for command, purpose in commands.items()]


def where_options(options: RunRequest, settings: Settings) -> str:
    """The options that another command needs to find the same run, with a blank before each."""
    broker = options.broker or settings.broker.bootstrap_servers
    chosen = {
        "--home": "" if options.home == Path(".rollog") else str(options.home),
        "--broker": "" if broker is None else public_address(broker),
        "--set": "" if settings.run.prefix == _usual_prefix else f"run.prefix={settings.run.prefix}",
    }
    return "".join(f" {option} {shlex.quote(value)}" for option, value in chosen.items() if value)


def _headline(summary: Summary) -> str:
    state = "is over" if summary["closed"] else "is not over"
    said = str(summary["close_reason"])
    reason = f" ({_reasons.get(said, said)})" if summary["closed"] and said else ""
    steps = _number(summary, "steps")
    if not steps:
        return f"run {summary['run']} {state}{reason}: no step was trained"
    told = f"{steps:.0f} step{'s' if steps > 1 else ''} in {_duration(_number(summary, 'wall_seconds'))}"
    whole = summary["up_seconds"]
    all_in_all = (
        ""
        if whole is None
        else f", {_duration(_number(summary, 'up_seconds'))} with start and end of all roles"
    )
    return f"run {summary['run']} {state}{reason}: {told}{all_in_all}"


def _held_out(summary: Summary) -> str:
    changes = [
        f"{_figure(summary[f'held_out_before{ending}'])} -> {_figure(summary[f'held_out_after{ending}'])} {name}"
        for name, ending in (("greedy", ""), ("sampled", "_sampled"))
        if summary[f"held_out_before{ending}"] is not None
    ]
    if not changes:
        return ""
    return f"{', '.join(changes)} ({_number(summary, 'held_out_prompts'):.0f} prompts)"


def _rewards(summary: Summary) -> str:
    rewards = cast("list[float]", summary["reward_by_step"])
    if not rewards:
        return ""
    return f"{rewards[0]:.3f} in the first, {rewards[-1]:.3f} in the last"


def _samples(summary: Summary) -> str:
    produced = _number(summary, "samples_produced")
    counted = _counted(_mapping(summary, "samples_by_disposition"))
    return f"{produced:,.0f} produced" + (f": {counted}" if counted else "")


def _lag(summary: Summary) -> str:
    if not _number(summary, "steps"):
        return ""
    alphas = cast("list[float]", summary["alpha_by_step"]) or [_number(summary, "alpha")]
    least, most = min(alphas), max(alphas)
    bound = f"{least:g}" if least == most else f"{least:g} to {most:g}"
    lag = _number(summary, "max_lag")
    return f"{lag:.0f} version{'s' if lag != 1 else ''}, alpha {bound}"


def _generated(summary: Summary) -> str:
    tokens = _number(summary, "tokens_generated")
    if not tokens:
        return ""
    return f"{tokens:,.0f} tokens, {_number(summary, 'tokens_per_second'):,.0f} per second"


def _step(seconds: Mapping[str, float]) -> str:
    if not seconds:
        return ""
    parts = sorted(((value, name) for name, value in seconds.items() if name != "total"), reverse=True)
    told = ", ".join(f"{value:.2f} {name}" for value, name in parts if value >= 0.005)  # noqa: PLR2004 - shown digits
    return f"{seconds['total']:.2f} s" + (f": {told}" if told else "")


def _duration(seconds: float) -> str:
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _counted(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{count:,.0f} {name}" for name, count in counts.items() if count)


def _number(summary: Summary, key: str) -> float:
    return cast("float", summary[key])


def _mapping(summary: Summary, key: str) -> Mapping[str, float]:
    return cast("Mapping[str, float]", summary[key])


def _figure(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-"
