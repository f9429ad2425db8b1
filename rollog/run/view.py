"""The live picture of a run: the stage graph with its numbers, and what each process is doing.

Whatever a record, an address or a path may say is put in as `Text`: rich would read a plain string as markup.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rollog.kernel.printable import printable
from rollog.settings.in_force import num_steps_in_force
from schemas import RunRole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from consumers.evaluation import EvaluationScore
    from consumers.progress import ProgressView
    from rollog.run.supervisor import SupervisedRole
    from schemas import WorkerStatus

_bars = "▁▂▃▄▅▆▇█"
_history_length = 40
_most_failures = 4
_most_heard = 12
_most_lags = 6
_most_seats = 8
_state_styles = {
    "running": "green",
    "done": "green",
    "waiting": "yellow",
    "given up": "red",
    "stopped": "dim",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run as it began."""

    run: str
    num_steps: int
    broker: str
    state_directory: str


def picture(
    facts: RunFacts, view: ProgressView, roles: Sequence[SupervisedRole], seconds: float
) -> RenderableType:
    """Everything, ready to print."""
    title = f"rollog · run {facts.run} · {_clock(seconds)}"
    said = [Text(standing_line(view), style="yellow"), Text("")] if view.standing_still else []
    if view.failures:
        said += [Text("\n".join(failure_lines(view)), style="red"), Text("")]
    body = Group(_stages(facts, view), Text(""), *said, _figures(facts, view), Text(""), _roles(view, roles))
    place = f"broker {facts.broker} · {facts.state_directory}"
    return Panel(body, title=Text(title), subtitle=Text(place), border_style="cyan")


def step_line(facts: RunFacts, view: ProgressView, step: int) -> str:
    """One finished step as a line of text."""
    timings = view.step_timings[step - 1]
    parts = [
        f"step {step}/{_num_steps(facts, view)}",
        f"reward {view.reward_history[step - 1]:.3f}",
        f"max lag {view.lag_max}",
        f"waited {timings.wait_seconds:.2f} s",
        f"trained {timings.train_seconds:.2f} s",
    ]
    if len(set(view.alpha_history[max(0, step - 2) : step])) > 1:
        parts.append(f"alpha {view.alpha_history[step - 1]:g}")
    if view.tokens_per_second:
        parts.append(f"{view.tokens_per_second:.0f} tokens/s")
    return "  ".join(parts)


def evaluation_line(name: str, version: int, score: EvaluationScore) -> str:
    """One evaluation as a line of text."""
    mean = f"{score.mean_reward:.3f} over {score.num_prompts} prompts"
    if score.num_incomplete:
        mean += f" ({score.num_incomplete} lack a seat and are left out)"
    return f"held-out reward ({name}) at version {version}: {mean}{_of_seats(score)}"


def standing_line(view: ProgressView) -> str:
    """What is waited for, as a line of text; empty while the run goes on."""
    return printable(view.standing_still)


def failure_lines(view: ProgressView) -> list[str]:
    """What rollouts failed with, and how often, a line each for the most frequent."""
    return [
        printable(f"{count} rollouts failed: {name}")
        for name, count in list(view.failures.items())[:_most_failures]
    ]


def phase_lines(view: ProgressView) -> list[str]:
    """What roles do before they can work, a line each; workers that do the same share one."""
    if view.is_closed:
        return []
    starting = Counter(worker.phase for worker in view.workers if worker.phase)
    return [
        *(printable(f"{status.role}: {status.phase}") for status in view.roles if status.phase),
        *(printable(f"{count} worker(s): {phase}") for phase, count in starting.items()),
    ]


def _num_steps(facts: RunFacts, view: ProgressView) -> int:
    """Training steps the run is to make, as they are in force."""
    return num_steps_in_force(facts.num_steps, view.changed_settings)


def _stages(facts: RunFacts, view: ProgressView) -> RenderableType:
    in_flight = (
        f"{sum(w.num_running for w in view.workers)}/{sum(w.capacity for w in view.workers)} in flight"
    )
    alpha = f"alpha {view.alpha:g}" if view.version >= 0 else ""
    step = f"step {max(view.version, 0)}/{_num_steps(facts, view)}"
    boxes = [
        ("dataset", "prompts", ""),
        ("dispatcher", f"{view.num_open_tasks} open tasks", _phase(view, RunRole.DISPATCHER) or alpha),
        (f"{len(view.workers)} worker(s)", in_flight, _served(view)),
        ("trainer", step, _phase(view, RunRole.TRAINER) or f"{view.samples_produced} samples"),
        ("weights", f"version {view.version}" if view.version >= 0 else "none yet", ""),
    ]
    parts: list[RenderableType] = []
    for number, (name, first, second) in enumerate(boxes):
        if number:
            parts.append(Text("\n\n→"))
        parts.append(Panel(Text(f"{first}\n{second}"), title=name, expand=False, border_style="blue"))
    return Columns(parts, padding=(0, 0))


def _served(view: ProgressView) -> str:
    """Versions in service, or what workers do before one is."""
    versions = sorted({w.served_version for w in view.workers if w.served_version is not None})
    if versions:
        return "serving v" + ", v".join(map(str, versions))
    phases = dict.fromkeys(worker.phase for worker in view.workers if worker.phase)
    return printable(", ".join(phases)) if phases else "no version served"


def _phase(view: ProgressView, role: RunRole) -> str:
    """What a role does before it can work, or that it is not heard; empty once it works, or the run is over."""
    if view.is_closed:
        return ""
    phases = [printable(status.phase) for status in view.roles if status.role is role]
    return phases[0] if phases else "not heard"


def _figures(facts: RunFacts, view: ProgressView) -> RenderableType:
    table = Table.grid(padding=(0, 3))
    for _ in range(2):
        table.add_column(style="bold")
        table.add_column()
    step = max(view.version, 0)
    reward = "-" if view.reward_mean is None else f"{view.reward_mean:.3f}  {sparkline(view.reward_history)}"
    table.add_row("step", f"{step}/{_num_steps(facts, view)}", "reward", reward)
    table.add_row("held-out", _accuracy(view), "tokens/s", f"{view.tokens_per_second:.0f}")
    table.add_row("lag", _lags(view), "samples", Text(_dispositions(view)))
    return table


def _roles(view: ProgressView, roles: Sequence[SupervisedRole]) -> RenderableType:
    doing = {worker.pid: worker_line(worker) for worker in view.workers}
    doing |= {status.pid: printable(status.phase) for status in view.roles}
    table = Table.grid(padding=(0, 3))
    if not roles:  # they run elsewhere: those that are heard
        for name, host, note in _heard(view):
            table.add_row(Text(name), "", Text(host), Text(note))
    for role in roles:
        state = Text(role.state.value, style=_state_styles.get(role.state.value, ""))
        pid = "" if role.child is None else f"pid {role.child.pid}"
        notes = [doing.get(role.child.pid, "")] if role.child else []
        if role.num_restarts:
            notes.append(f"restarted {role.num_restarts} times")
        notes.append(role.reason)
        table.add_row(
            Text(role.spec.name), state, pid, Text(printable(", ".join(note for note in notes if note)))
        )
    return table


def _heard(view: ProgressView) -> list[tuple[str, str, str]]:
    """Name, machine and doing of everybody who is heard."""
    found = [(status.role.value, status.host, status.phase or "at work") for status in view.roles]
    found += [(worker.worker_id, worker.host, worker_line(worker)) for worker in view.workers]
    shown = [(printable(name), printable(host), printable(note)) for name, host, note in found[:_most_heard]]
    more = len(found) - len(shown)
    return [*shown, *([("", "", f"and {more} more")] if more else [])]


def worker_line(worker: WorkerStatus) -> str:
    """What a worker is doing."""
    if worker.phase:
        return worker.phase
    version = "no weights yet" if worker.served_version is None else f"version {worker.served_version}"
    scored = f", {worker.num_scoring} being scored" if worker.num_scoring else ""
    failure = f", {worker.error}" if worker.error else ""
    return (
        f"{worker.state.value}, {version}, {worker.num_running}/{worker.capacity} rollouts in flight{scored}"
        f"{failure}"
    )


def sparkline(values: Sequence[float]) -> str:
    """The newest values as a row of bars between their smallest and largest."""
    shown = values[-_history_length:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    scale = (len(_bars) - 1) / (high - low) if high > low else 0.0
    return "".join(_bars[round((value - low) * scale)] for value in shown)


def _accuracy(view: ProgressView) -> str:
    newest = view.newest_evaluation("greedy")
    if newest is None:
        return "-"
    version, score = newest
    before = view.accuracy("greedy", 0)
    start = "" if before is None or version == 0 else f" (from {before:.3f})"
    return f"{score.mean_reward:.3f} at version {version}{start}{_of_seats(score)}"


def _of_seats(score: EvaluationScore) -> str:
    """The means by seat, where there are several; of very many the first ones."""
    shown = list(score.seat_rewards.items())[:_most_seats]
    means = "".join(f", seat {seat}: {reward:.3f}" for seat, reward in shown)
    return means + (", ..." if len(score.seat_rewards) > _most_seats else "")


def _lags(view: ProgressView) -> str:
    counted = [(lag, count) for lag, count in sorted(view.lags.items()) if count]
    counts = ", ".join(f"{lag}: {count}" for lag, count in counted[:_most_lags])
    if rest := sum(count for _, count in counted[_most_lags:]):
        counts += f", above: {rest}"
    return f"max {view.lag_max}" + (f" ({counts})" if counts else "")


def _dispositions(view: ProgressView) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in view.dispositions.items())
    return f"{view.samples_produced}" + (f" ({printable(counts)})" if counts else "")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
