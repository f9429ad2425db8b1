"""The runs that are registered at a broker: how far each is, what it learned, and what it takes up on this disk."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from consumers.progress import RunProgress
from rollog.kernel.addresses import public_address
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import (
    BrokerTimeout,
    ConfigError,
    LedgerError,
    NotAuthorized,
    RollogError,
    TopicMismatch,
)
from rollog.kernel.logs import get_logger
from rollog.kernel.printable import printable
from rollog.kernel.runs import read_runs
from rollog.kernel.sizes import readable_bytes
from rollog.run.disk_use import bytes_of_run
from rollog.run.manifest_check import own_settings
from rollog.run.names import is_name
from rollog.run.relocation import at_home
from rollog.settings.in_force import num_steps_in_force

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from consumers.progress import ProgressView
    from rollog.kernel.broker.ports import Broker
    from rollog.settings.settings import Settings
    from schemas import RunManifest

log = get_logger("runs")

_read_seconds = 30.0
_alive_seconds = 15.0
"""A heartbeat that was appended no longer ago is of a role that works; clocks of two machines may differ a little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """One registered run. `bytes_here` counts topics of the embedded broker, weights and checkpoints on this disk.

    `num_steps` is None where the settings of the run cannot be read.
    """

    name: str
    state: str
    num_steps: int | None
    steps: int
    held_out_before: float | None
    held_out_after: float | None
    bytes_here: int
    begun: datetime
    weights_uri: str


def list_runs(
    broker: Broker, prefix: str, home: Path, *, clock: Callable[[], float] = time.time
) -> Iterator[ListedRun]:
    """All runs under `prefix`, the oldest first. A run that cannot be read is listed with the reason as its state.

    A manifest with a name that no run can have is logged and passed over: the name would be part of a path.
    """
    for manifest in sorted(read_runs(broker, prefix).values(), key=lambda each: each.created_unix_seconds):
        if is_name(manifest.run):
            yield _listed(broker, manifest, home, clock)
        else:
            log.warning("manifest with a malformed name", run=printable(manifest.run))


def run_table(runs: Sequence[ListedRun]) -> list[str]:
    """The runs as lines of a table, with a head."""
    rows = [("RUN", "STATE", "STEPS", "HELD-OUT REWARD", "ON THIS DISK", "BEGUN", "WEIGHTS")]
    rows += [
        (
            run.name,
            run.state,
            f"{run.steps}/{'?' if run.num_steps is None else run.num_steps}",
            _change(run.held_out_before, run.held_out_after),
            readable_bytes(run.bytes_here),
            run.begun.strftime("%Y-%m-%d %H:%M"),
            run.weights_uri,
        )
        for run in runs
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        printable("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def _listed(broker: Broker, manifest: RunManifest, home: Path, clock: Callable[[], float]) -> ListedRun:
    topics = RunTopics(manifest.prefix, manifest.run)
    settings: Settings | None = None
    view: ProgressView | None = None
    try:
        settings = at_home(own_settings(manifest), home)
        with RunProgress(broker, topics, num_seats=settings.environment.seats) as progress:
            view = progress.read_to_end(_read_seconds)
            seconds_silent = clock() - progress.newest_record_ms / 1000
        state = _state(view, seconds_silent)
    except (ConfigError, NotAuthorized, TopicMismatch, LedgerError, BrokerTimeout) as error:
        state = _unreadable(error)
        if isinstance(error, ConfigError):
            log.warning("run not readable", run=manifest.run, error=printable(str(error), limit=500))
    uri = manifest.weights_uri if settings is None else settings.weights.uri or manifest.weights_uri
    return ListedRun(
        name=manifest.run,
        state=state,
        steps=0 if view is None else max(view.version, 0),
        num_steps=_num_steps(settings, view),
        held_out_before=None if view is None else view.accuracy("greedy", 0),
        held_out_after=_newest_held_out(view),
        bytes_here=bytes_of_run(topics, uri, home),
        begun=_begun(manifest),
        weights_uri=public_address(uri),
    )


def _num_steps(settings: Settings | None, view: ProgressView | None) -> int | None:
    if settings is None:
        return None
    return num_steps_in_force(settings.run.num_steps, {} if view is None else view.changed_settings)


def _begun(manifest: RunManifest) -> datetime:
    """When the run was created; the beginning of all time where its manifest names no time."""
    try:
        return datetime.fromtimestamp(manifest.created_unix_seconds, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, tz=UTC)


def _state(view: ProgressView | None, seconds_silent: float) -> str:
    if view is not None and view.is_closed:
        return "over"
    if seconds_silent <= _alive_seconds:
        return "running"
    return "stopped" if view is not None and view.version >= 0 else "not begun"


def _unreadable(error: RollogError) -> str:
    match error:
        case TopicMismatch():
            return "no topics"
        case LedgerError():
            return "ledger altered"
        case NotAuthorized():
            return "no rights"
    return "not readable"


def _newest_held_out(view: ProgressView | None) -> float | None:
    newest = None if view is None else view.newest_evaluation("greedy")
    return None if newest is None or newest[0] == 0 else newest[1].mean_reward


def _change(before: float | None, after: float | None) -> str:
    if before is None and after is None:
        return "-"
    return f"{_figure(before)} -> {_figure(after)}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
