"""Whether a run stands still, as somebody sees it who follows its topics.

Who is heard, and since when no step came, is counted by the listener's own clock from when it read a record: clocks of
two machines are never compared. How far apart steps usually are is the difference of the broker's append times. So
one that begins late counts from its beginning, and says less than is true, never more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.rules.standing_still import (
    Pace,
    absent_role,
    absent_workers,
    acts_itself,
    silent_seconds,
    words_of,
)
from schemas import Genesis, RunRole, Step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from schemas import LedgerRecord, RoleStatus

_unheard_seconds = 30.0
"""A role that was never heard for so long does not only import its libraries any more."""

_unexplained = "neither dispatcher nor trainer says what it waits for yet; look into their logs"


@dataclass(slots=True)
class Listener:
    """Hears steps and heartbeats from `begun_at` on, in seconds of one clock.

    Example: it begins at 100 s and reads a trainer's heartbeat that is an hour old. At 111 s it says "no trainer since
    11 s": it has heard none for so long.
    """

    begun_at: float
    log_here: Callable[[RunRole], Path | None] = lambda _: None
    """The log of a role whose process lives and was started by whoever listens: until it is heard, it is loading."""
    _pace: Pace = field(init=False)
    _step_ms: int = 0
    _worker_at: float | None = None
    _heard: dict[RunRole, tuple[RoleStatus, float]] = field(default_factory=dict)
    _left: set[RunRole] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._pace = Pace(self.begun_at)

    def on_ledger(self, record: LedgerRecord, at_ms: int, now: float) -> None:
        """Hear a record of the ledger that was appended at `at_ms` of the broker."""
        if isinstance(record.body, Genesis):
            self._pace.begins(now)
        elif isinstance(record.body, Step):
            self._pace.step(now, (at_ms - self._step_ms) / 1000)
            self._step_ms = at_ms

    def on_role(self, status: RoleStatus, now: float) -> None:
        """Hear dispatcher or trainer."""
        self._heard[status.role] = (status, now)
        self._left.discard(status.role)

    def on_worker(self, now: float) -> None:
        """Hear a rollout worker."""
        self._worker_at = now

    def present(self, now: float) -> tuple[RoleStatus, ...]:
        """What dispatcher and trainer said last, as far as they are heard."""
        return tuple(
            status
            for role, (status, heard_at) in self._heard.items()
            if role not in self._left and now - heard_at <= silent_seconds
        )

    def on_leave(self, role: RunRole) -> None:
        """Hear that a role has ended by itself."""
        self._left.add(role)

    def sentence(self, version: int, now: float, *, has_worker: bool, starting: str = "") -> str:
        """What is to be said of a run that is not closed, and at `version`; empty while it goes on.

        `starting` is what a worker does before it serves.
        """
        for role in (RunRole.TRAINER, RunRole.DISPATCHER):
            if role in self._heard and now - self._heard[role][1] > silent_seconds:
                return absent_role(role, now - self._heard[role][1], was_heard=True).sentence
            is_awaited = role not in self._heard and not self._pace.has_step
            if is_awaited and now - self.begun_at > _unheard_seconds:
                return self._unheard(role, now)
        if not self._pace.still_seconds(now):
            return ""
        usual = self._pace.usual_seconds
        compared = "" if usual is None else f" (usual {usual:.1f} s)"
        cause = self._cause(version, now, has_worker=has_worker)
        if cause == _unexplained and starting:
            cause = f"a worker is {starting}"
        return f"no step for {self._pace.waited(now):.0f} s{compared}: {cause}"

    def _unheard(self, role: RunRole, now: float) -> str:
        seconds, log_path = now - self.begun_at, self.log_here(role)
        if log_path is None:
            return absent_role(role, seconds, was_heard=False).sentence
        return f"the {role} is still loading after {seconds:.0f} s; its log is {log_path}"

    def _cause(self, version: int, now: float, *, has_worker: bool) -> str:
        for role in (RunRole.TRAINER, RunRole.DISPATCHER):
            if role not in self._heard:
                return self._unheard(role, now)
        trainer, dispatcher = (self._heard[role][0] for role in (RunRole.TRAINER, RunRole.DISPATCHER))
        for status in (trainer, dispatcher):
            if status.phase:
                return f"the {status.role} is {status.phase}"
        if acts_itself(trainer, version):
            return words_of(trainer, version)
        said = words_of(dispatcher, version)
        worker_at = self.begun_at if self._worker_at is None else self._worker_at
        if not said and (not has_worker or now - worker_at > silent_seconds):
            return absent_workers(now - worker_at).sentence
        return said or words_of(trainer, version) or _unexplained
