"""What to do about a role that ended: a pure function of how and when it ended before."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.errors import (
    exit_status_configuration,
    exit_status_engine,
    exit_status_expired,
    exit_status_fenced,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_most_doublings = 16
"""Of the pause; far above the longest one, and below what a number of seconds can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """One end of a role's process: exit status (negative: killed by that signal) and when."""

    status: int
    at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """At most `max_restarts` restarts within `window_seconds`, each later than the one before.

    A role that was suspended, or had no broker, for too long is started again without end: it did nothing wrong.
    """

    max_restarts: int = 5
    window_seconds: float = 300.0
    first_delay_seconds: float = 0.5
    longest_delay_seconds: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Start the role again after a while."""

    after_seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Leave the role alone: starting it again would not help or not be right."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The role ended because the run did."""


Decision = Restart | GiveUp | Done


def decide(policy: RestartPolicy, exits: Sequence[Exit]) -> Decision:
    """What follows from the newest of `exits` (oldest first, at least one)."""
    newest = exits[-1]
    reason = describe_status(newest.status)
    if newest.status == 0:
        return Done()
    if newest.status == exit_status_fenced:
        return GiveUp(reason=f"{reason}; another process has taken its place")
    if newest.status == exit_status_configuration:
        return GiveUp(reason=f"{reason}; the same settings and data would fail again")
    if [each.status for each in exits[-2:]] == [exit_status_engine] * 2:
        return GiveUp(
            reason=f"{reason}; its engine could not start twice in a row, and would not a third time"
        )
    is_expired = newest.status == exit_status_expired
    recent = sum(
        ended.status != 0
        and (ended.status == exit_status_expired) == is_expired
        and newest.at_seconds - ended.at_seconds <= policy.window_seconds
        for ended in exits
    )
    if is_expired:
        reason = f"{reason}; it was suspended, or its broker did not answer, for too long"
    elif recent > policy.max_restarts:
        limit = f"{policy.max_restarts} restarts within {policy.window_seconds:g} s"
        return GiveUp(reason=f"{reason}; {limit} were not enough")
    delay = policy.first_delay_seconds * 2.0 ** min(recent - 1, _most_doublings)
    return Restart(after_seconds=min(delay, policy.longest_delay_seconds), reason=reason)


def describe_status(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
