"""Calls of a reward function, and the queue of those that no process has yet."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rollog.kernel.errors import RewardError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from producers.processes.walls import ProcessWalls
    from producers.rewards.functions import RewardResult


@dataclass(eq=False)
class RewardCall:
    """One call in flight: its line, and where its result is awaited.

    An answer bears the name of its call, which is drawn at random: no line that a function writes by itself passes for
    one. `begun` is the loop's time at which its process began it. `most_together` is how many calls may run in one
    process with this one, itself included: fewer after each process that ended while it ran.
    """

    name: str
    line: bytes
    result: asyncio.Future[RewardResult]
    begun: float = 0.0
    most_together: int = sys.maxsize

    @classmethod
    def of(cls, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardCall:
        """A call that is made in the loop that runs now. Raises TypeError for what JSON cannot hold."""
        name = secrets.token_hex(8)
        line = json.dumps([name, prompt, response, dict(fields)]).encode() + b"\n"
        return cls(name, line, asyncio.get_running_loop().create_future())

    @property
    def is_suspect(self) -> bool:
        """Whether a process has ended while it ran, and it may be at fault."""
        return self.most_together < sys.maxsize

    def fail(self, reason: str) -> None:
        """Raise RewardError where the result is awaited, unless nobody awaits it any more."""
        if not self.result.done():
            self.result.set_exception(RewardError(f"the reward was not computed: {reason}"))


def blame(at_work: Sequence[RewardCall], reason: str) -> None:
    """Find out which of the calls ended their process: one that was alone fails, several run in smaller company.

    Several can be at work only where the function is `async def`. Halving their company separates the one at fault in
    log2(n) ends of a process; each of the others is answered as soon as it runs without it.
    """
    if len(at_work) == 1:
        at_work[0].fail(reason)
    for call in at_work:
        call.most_together = (len(at_work) + 1) // 2


class CallQueue(Protocol):
    """The calls that no process has yet, and what all processes share."""

    num_kills: int
    walls: ProcessWalls

    @property
    def timeout_seconds(self) -> float:
        """Longest time of one call."""
        ...

    @property
    def process_arguments(self) -> list[str]:
        """What a process is told, as words of its command line."""
        ...

    def distribute(self) -> None:
        """Send waiting calls to the processes that have room."""
        ...

    def take_back(self, calls: Sequence[RewardCall]) -> None:
        """Put calls first in the queue again."""
        ...

    def fail_waiting(self, reason: str) -> None:
        """Fail what waits while no process is there to take it."""
        ...
