"""Whether a run stands still, and how it is said: what is waited for and the remedy, in one sentence.

Pure: time comes in as a number, of one clock. A run stands still when the next step takes a few times as long as the
last ones did. Trainer and dispatcher say what they wait for after `least_seconds` already, so that whoever watches has
their words when it finds, by the log's times, that the run stands still.

| no step for | after steps at a usual distance of | the run |
| --- | --- | --- |
| 9 s | 1 s | goes on: nothing shorter than 10 s is told |
| 11 s | 1 s | stands still |
| 100 s | 30 s | goes on: 4 times the usual is 120 s |
| 61 s | (no two steps were seen) | stands still |

Example: steps come every 2 s. At 10.5 s after one the role warns, at 70.5 s again. At 81 s a step comes: it says once
that the run goes on. The usual stays 2 s, for it is the median of the last 8 distances.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

from schemas import RunRole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas import RoleStatus

least_seconds = 10.0
first_step_seconds = 60.0
"""Allowed where the usual is not known: engines start, checkpoints are restored."""

_times_the_usual = 4
_num_distances = 8
_repeat_seconds = 60.0

silent_seconds = 8.0
"""A role that was heard and is silent for so long, four heartbeats, is not there.

Less than `least_seconds`: a role that dies right after a step is named by the first word already, not a worker that
waits for it."""

scorer = "scorer"
"""Who has to act where rewards come late and do not come."""

_commands = {RunRole.TRAINER: "rollog train", RunRole.DISPATCHER: "rollog dispatch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What is waited for, what to do about it, and who has to act: broker, dispatcher, trainer, worker or scorer."""

    what: str
    waits_on: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """Both, as they are shown; what another role said holds its remedy already."""
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


class Told(StrEnum):
    """What is to be said now."""

    STANDS_STILL = "the run stands still"
    GOES_ON = "the run goes on"


def allowed_seconds(distances: Sequence[float]) -> float:
    """How long the next step may take, after steps at these distances in seconds."""
    if not distances:
        return first_step_seconds
    return max(least_seconds, _times_the_usual * median(distances[-_num_distances:]))


@dataclass(slots=True)
class Pace:
    """How steps follow each other; `last` is when the last one came, or when one was first waited for."""

    last: float
    distances: deque[float] = field(default_factory=lambda: deque(maxlen=_num_distances))
    has_step: bool = False
    is_over: bool = False

    def step(self, now: float, distance: float | None = None) -> None:
        """A step came, `distance` seconds after the one before (else: since that was told).

        The way to the first one that is seen is no distance between two.
        """
        if self.has_step:
            self.distances.append(max(0.0, now - self.last if distance is None else distance))
        self.last, self.has_step = now, True

    def begins(self, now: float) -> None:
        """The run began: the first step is waited for from now on."""
        self.last = now

    def ends(self, now: float) -> None:
        """No further step is waited for."""
        self.last, self.is_over = now, True

    @property
    def usual_seconds(self) -> float | None:
        """The usual distance of two steps; None while it is not known."""
        return median(self.distances) if self.distances else None

    def waited(self, now: float) -> float:
        """Seconds since the last step."""
        return max(0.0, now - self.last)

    def still_seconds(self, now: float) -> float:
        """Seconds since the last step if the run stands still, else 0."""
        waited = self.waited(now)
        is_still = not self.is_over and waited > allowed_seconds(tuple(self.distances))
        return waited if is_still else 0.0


@dataclass(slots=True)
class Teller:
    """When to say it: as it begins, then every minute, and once when it is over."""

    _told_at: float | None = None

    def due(self, is_still: bool, now: float) -> Told | None:
        """What to say now, if anything."""
        if not is_still:
            was_told, self._told_at = self._told_at is not None, None
            return Told.GOES_ON if was_told else None
        if self._told_at is not None and now - self._told_at < _repeat_seconds:
            return None
        self._told_at = now
        return Told.STANDS_STILL


def absent_role(role: RunRole, since_seconds: float, *, was_heard: bool) -> Cause:
    """Nobody works as `role`."""
    if was_heard:
        what = f"no {role} since {since_seconds:.0f} s"
        remedy = f"look into its log, and start it again with `{_commands[role]}`"
    else:
        what = f"no {role} was heard in {since_seconds:.0f} s"
        remedy = f"start one with `{_commands[role]}`, or see in its log what it is still loading"
    return Cause(what=what, remedy=remedy, waits_on=role.value)


def absent_workers(since_seconds: float) -> Cause:
    """No rollout worker is heard."""
    return Cause(
        what=f"no worker since {since_seconds:.0f} s",
        remedy="start one with `rollog rollout`, or see in its log why it ended",
        waits_on="worker",
    )


def words_of(status: RoleStatus | None, version: int) -> str:
    """What a role says it waits for; empty where that is not about the step after `version`."""
    return "" if status is None or status.version < version else status.waiting_for


def acts_itself(status: RoleStatus | None, version: int) -> bool:
    """Whether the role says that it is itself who has to act, or a program outside of the run that only it knows of."""
    return bool(words_of(status, version)) and status is not None and status.waits_on in (status.role, scorer)
