"""What is done to a run in which kills, pauses and second processes come mixed: a plan made of a seed.

Every target is killed once and suspended once in a round, in a drawn order. Half of the faults wait until the run has
made another version, the others come while it still recovers from the fault before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from benchmarks.chaos.killed_run import Target
from benchmarks.chaos.kills import Role
from rollog.kernel.crash_points import CrashPoint

if TYPE_CHECKING:
    from collections.abc import Sequence

Item = TypeVar("Item")

time_outs: dict[str, object] = {
    "dispatch.lease_seconds": 2.0,
    "trainer.transaction_timeout_seconds": 2.0,
    "broker.connect_timeout_seconds": 5.0,
}
"""Settings that make time-outs short. What no setting shortens is left out: a client keeps a record for 120 s."""
pauses_seconds = ((0.2, 1.0), (2.5, 4.0), (6.5, 8.0))
"""Shorter than every time-out; longer than lease and transaction; longer than every time-out, the broker's session too.
"""
_settling_share = 0.5
_shortest_wait_seconds, _longest_wait_seconds = 0.1, 3.0


class FaultKind(StrEnum):
    """What happens to a target."""

    KILL = "kill"
    """SIGKILL."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT after a while."""
    DOUBLE = "double"
    """A second process of that role is started for the same run, by hand."""


class Whole(StrEnum):
    """What supervises the others."""

    UP = "up"


FaultTarget = Target | Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One planned fault, `wait_seconds` after the one before; where it `settles`, the next one waits for a version."""

    kind: FaultKind
    target: FaultTarget
    wait_seconds: float
    pause_seconds: float = 0.0
    settles: bool = True

    def __str__(self) -> str:
        length = f" for {self.pause_seconds:.1f} s" if self.kind is FaultKind.PAUSE else ""
        return f"{self.kind} {self.target}{length}"


of_patches = (CrashPoint.PATCHES_DECODED, CrashPoint.COPY_BETWEEN_VERSIONS)
"""Windows by which a worker comes in runs whose versions are patches."""
doubled_roles = (Role.TRAINER, Role.DISPATCHER)


def plan_faults(
    seed: int, targets: Sequence[FaultTarget], *, num_kills: int, num_pauses: int, num_doubles: int = 0
) -> list[Fault]:
    """One run's faults: so many of each kind, each target at most once by kind while there are enough of them."""
    draw = random.Random(seed)  # a plan that can be repeated
    chosen = [
        *((FaultKind.KILL, target) for target in _drawn(draw, targets, num_kills)),
        *((FaultKind.PAUSE, target) for target in _drawn(draw, targets, num_pauses)),
        *((FaultKind.DOUBLE, target) for target in _drawn(draw, doubled_roles, num_doubles)),
    ]
    draw.shuffle(chosen)
    ranges = _drawn(draw, pauses_seconds, len(chosen))
    return [
        Fault(
            kind=kind,
            target=target,
            wait_seconds=draw.uniform(_shortest_wait_seconds, _longest_wait_seconds),
            pause_seconds=draw.uniform(*length) if kind is FaultKind.PAUSE else 0.0,
            settles=draw.random() < _settling_share,
        )
        for (kind, target), length in zip(chosen, ranges, strict=True)
    ]


def role_at(point: CrashPoint) -> Role:
    """Who comes by a window."""
    if point is CrashPoint.GRANT_SENT:
        return Role.DISPATCHER
    of_worker = (CrashPoint.SAMPLE_ACKNOWLEDGED, CrashPoint.SWAP_HALF_DONE, *of_patches)
    return Role.WORKER if point in of_worker else Role.TRAINER


def _drawn(draw: random.Random, items: Sequence[Item], number: int) -> list[Item]:
    found: list[Item] = []
    while len(found) < number:
        found += draw.sample(list(items), min(len(items), number - len(found)))
    return found
