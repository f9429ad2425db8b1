"""One process of the pool, seen from here: starting it, sending calls, timing them, replacing it.

A call that hangs is killed with its process at the time-out. Calls that waited behind it go to the replacement.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections import deque
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

from producers.rewards.functions import RewardResult
from rollog.kernel.errors import DataError, RewardError
from rollog.kernel.logs import get_logger

_log = get_logger("rewards")
_start_timeout_seconds = 120.0
_reopen_seconds = 1.0
_calls_per_process = 32
_suspended_seconds = 2.0


@dataclass(eq=False)
class RewardCall:
    """One call in flight: its line, and where its result is awaited."""

    line: bytes
    result: asyncio.Future[RewardResult]

    def fail(self, reason: str) -> None:
        """Raise RewardError where the result is awaited, unless nobody awaits it any more."""
        if not self.result.done():
            self.result.set_exception(RewardError(f"the reward was not computed: {reason}"))


class CallQueue(Protocol):
    """The calls that no process has yet, and what all processes share."""

    num_kills: int

    @property
    def timeout_seconds(self) -> float:
        """Longest time of one call."""
        ...

    def spawn_arguments(self, descriptor: int) -> list[str]:
        """Command line of a process that talks over this file descriptor."""
        ...

    def distribute(self) -> None:
        """Send waiting calls to the processes that have room."""
        ...

    def take_back(self, calls: list[RewardCall]) -> None:
        """Put calls first in the queue again."""
        ...

    def fail_waiting(self, reason: str) -> None:
        """Fail what waits while no process is there to take it."""
        ...


class RewardWorker(asyncio.Protocol):
    """One process at a time, and this end of its socket.

    | state     | reached by                                   | its calls                                            |
    | ---       | ---                                          | ---                                                  |
    | starting  | `open`                                       | it has none                                          |
    | open      | its first line: the function is imported     | answered in order; the first one is timed            |
    | replacing | the process ended, or was killed as too slow | the first one fails, the others go back to the queue |
    | closed    | `close`                                      | all fail                                             |

    Example: calls A, B, C are sent; A takes longer than 10 s. The process is killed: A fails, B and C go first in the
    queue, another process is started and gets them.
    """

    def __init__(self, pool: CallQueue) -> None:
        self._pool = pool
        self.calls: deque[RewardCall] = deque()
        self.process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rest = b""
        self._reason = "its process ended"
        self._closing = False
        self._reopening: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the process is there and has imported the function."""
        if self._ready is None or self._transport is None:
            return False
        return self._ready.done() and self._ready.exception() is None

    @property
    def room(self) -> int:
        """Calls that could be sent now."""
        return _calls_per_process - len(self.calls) if self.is_open else 0

    async def open(self) -> None:
        """Start a process. Raises DataError when it cannot import the function."""
        loop = asyncio.get_running_loop()
        self._rest, self._reason, self._ready = b"", "its process ended", loop.create_future()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self.process = await asyncio.create_subprocess_exec(
                *self._pool.spawn_arguments(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        transport, _ = await loop.create_connection(lambda: self, sock=ours)
        self._transport = transport
        try:
            await asyncio.wait_for(self._ready, _start_timeout_seconds)
        except TimeoutError as error:
            raise DataError(
                f"the reward process was not ready within {_start_timeout_seconds:.0f} s"
            ) from error
        self._pool.distribute()

    def send(self, calls: list[RewardCall]) -> None:
        """Write calls, to be answered in order."""
        assert self._transport is not None
        if not self.calls:
            self._restart_timer()
        self.calls.extend(calls)
        self._transport.write(b"".join(call.line for call in calls))

    async def close(self) -> None:
        """End the process."""
        self._closing = True
        if self._reopening is not None:
            self._reopening.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        for call in self.calls:
            call.fail("the worker is leaving")
        self.calls.clear()
        if self.process is not None:
            _kill(self.process)
            await self.process.wait()

    def data_received(self, data: bytes) -> None:
        """Answers came: hand them out in the order of the calls."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        if lines:
            self._restart_timer()
            self._pool.distribute()

    def connection_lost(self, exc: Exception | None) -> None:
        """The process is gone: fail the call it was at, send the others again, start another process."""
        del exc
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._closing:
            return
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(DataError("the reward process ended while it imported the function"))
            return
        if self._reopening is not None and not self._reopening.done():
            return
        if self.calls:
            # Calls are answered in order, so the first is the one that was computed; no other can be at fault.
            self.calls.popleft().fail(self._reason)
        self._pool.take_back(list(self.calls))
        self.calls.clear()
        self._reopening = asyncio.get_running_loop().create_task(
            self._reopen(), name="reward process restart"
        )

    async def _reopen(self) -> None:
        if self.process is not None:
            _kill(self.process)
            await self.process.wait()
        _log.warning("reward process replaced", reason=self._reason)
        for pause_seconds in repeat(_reopen_seconds):
            if await self._opened():
                return
            await asyncio.sleep(pause_seconds)

    async def _opened(self) -> bool:
        """Try to start another process; when that fails and no other is there, waiting calls fail too."""
        try:
            await self.open()
        except (DataError, OSError) as error:
            _log.error("reward process did not start again", error=str(error))
            if self.process is not None:
                _kill(self.process)
            self._pool.fail_waiting(f"the reward process did not start again: {error}")
            return False
        return True

    def _take(self, answer: dict[str, Any]) -> None:
        assert self._ready is not None
        if not self._ready.done():
            if "error" in answer:
                self._ready.set_exception(DataError(answer["error"]))
            else:
                self._ready.set_result(None)
            return
        call = self.calls.popleft()
        if call.result.done():
            return
        if "error" in answer:
            call.result.set_exception(RewardError(answer["error"]))
        else:
            call.result.set_result(
                RewardResult(
                    reward=answer["reward"],
                    components=answer["components"],
                    turn_rewards=tuple(answer["turn_rewards"]),
                )
            )

    def _restart_timer(self) -> None:
        """Time the call that the process is at now."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        due = loop.time() + self._pool.timeout_seconds
        self._timer = loop.call_at(due, self._kill_if_late, due)

    def _kill_if_late(self, due: float) -> None:
        # Who looks so late was suspended, the process perhaps with it: its time begins again.
        if asyncio.get_running_loop().time() - due > _suspended_seconds:
            self._restart_timer()
            return
        if self.calls and self.process is not None:
            self._reason = f"the reward function took longer than {self._pool.timeout_seconds:g} s"
            self._pool.num_kills += 1
            _kill(self.process)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
