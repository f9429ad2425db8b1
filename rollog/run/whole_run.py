"""A new run on this machine, from its settings to its end: what `rollog up` and `rollog.up` do."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.broker.rights import Role
from rollog.kernel.errors import ConfigError
from rollog.run.conclusion import version_of
from rollog.run.connection import connect, embedded_unless_named
from rollog.run.creation import complete, create_run, refuse_taken_name
from rollog.run.local_run import RoleFlags, run_here
from rollog.run.placement import placed_here
from rollog.run.preflight import refuse_what_cannot_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from consumers.progress import ProgressView
    from rollog.run.display import Display
    from rollog.run.view import RunFacts
    from rollog.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Who is told before there is a run to show: what is done now, what would hurt the run, how far files are made."""

    say: Callable[[str], None]
    warn: Callable[[str], None]
    report: Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A run that was started here, as it is now that nobody works for it here any more."""

    settings: Settings
    view: ProgressView
    exit_status: int
    kafka_version: str
    up_seconds: float


def whole_run(
    settings: Settings,
    home: Path,
    *,
    num_workers: int,
    audience: Audience,
    has_preflight: bool = True,
    is_terminal: bool = False,
    flags: RoleFlags | None = None,
    display: Callable[[RunFacts], Display] | None = None,
) -> EndedRun:
    """Look at what the run needs, start a broker where none is named, create the run and supervise it to its end.

    To be called in the main thread. Raises ConfigError and DataError for what cannot run, RunExists, BrokerError, and
    ChildFailed when a role that is needed was given up.
    """
    begin = time.monotonic()
    if num_workers < 1:
        raise ConfigError(
            f"a run with {num_workers} rollout workers would wait for ever: start 1 at least (num_workers of rollog.up)"
        )
    placed_here(settings, num_workers)  # too few devices are said before anything is made
    if has_preflight:
        audience.say("looking at model, data, reward function and stores")
        refuse_what_cannot_run(settings, home, audience.warn)
    with embedded_unless_named(settings.broker, home, audience.say) as kafka:
        broker = connect(settings.broker, home)
        refuse_taken_name(broker, settings, Role.UP)
        settings = complete(settings, home, audience.report)
        create_run(broker, settings, Role.UP)
        outcome = run_here(
            settings,
            broker,
            kafka,
            home=home,
            num_workers=num_workers,
            is_terminal=is_terminal,
            flags=flags or RoleFlags(),
            display=display,
        )
        version = version_of(broker, kafka)
    return EndedRun(
        settings=settings,
        view=outcome.view,
        exit_status=outcome.exit_status,
        kafka_version=version,
        up_seconds=time.monotonic() - begin,
    )
