"""One process of the pool, seen from here: starting it, sending calls, timing them, replacing it.

A plain function computes one call after the other: one that hangs is killed with its process at the time-out, and those
that waited behind it go to the replacement. An `async def` function has all its calls at work at once: its process ends
a late one by itself, and is killed only if it does not.

Each process is a host (`producers/processes/hosts.py`), and what it leaves behind in its process group is killed with
it. What the function raises comes back as an answer.
"""

from __future__ import annotations

import asyncio
import os
from itertools import islice, repeat
from typing import TYPE_CHECKING

from producers.processes.ending import kill_group
from producers.processes.hosts import (
    connected,
    drained_end,
    start_host,
    start_timeout_seconds,
    suspended_seconds,
)
from producers.rewards.answers import check_length, parsed_answer, result_in
from producers.rewards.calls import blame
from rollog.kernel.errors import DataError, RewardError
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.rewards.calls import CallQueue, RewardCall

_log = get_logger("rewards")
_host = "producers.rewards.process"
_reopen_seconds = 1.0
_calls_per_process = 32
_late_seconds = 2.0
"""A process ends late calls of an `async def` function itself; so much later, at most, it is killed."""


class RewardWorker(asyncio.Protocol):
    """One process at a time, and this end of its socket.

    | state     | reached by                                   | its calls                                         |
    | ---       | ---                                          | ---                                               |
    | starting  | `open`                                       | it has none                                       |
    | open      | its first line: the function is imported     | answered; those at work are timed                 |
    | replacing | the process ended, or was killed as too slow | one alone at work fails, the others go back       |
    | closed    | `close`                                      | all fail                                          |

    Example: calls A, B, C are sent; A takes longer than 10 s. With a plain function only A was at work: the process is
    killed, A fails, B and C go first in the queue, another process is started and gets them. If an `async def` function
    blocks its loop in A, all three were at work: A and B run beside each other next, then A alone, which fails.
    """

    def __init__(self, pool: CallQueue) -> None:
        self._pool = pool
        self.calls: dict[str, RewardCall] = {}
        self.process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rest = b""
        self._reason = "its process ended"
        self._closing = False
        self._is_concurrent = False
        self._reopening: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the process is there and has imported the function."""
        if self._ready is None or self._transport is None or self._transport.is_closing():
            return False
        # A start that timed out has cancelled it, and then it has no exception to ask for.
        return self._ready.done() and not self._ready.cancelled() and self._ready.exception() is None

    def room_for(self, call: RewardCall) -> int:
        """Calls like this one that could be sent now."""
        if not self.is_open:
            return 0
        most = min(each.most_together for each in (call, *self.calls.values()))
        return (most if self._is_concurrent else _calls_per_process) - len(self.calls)

    async def open(self) -> None:
        """Start a process. Raises DataError when it cannot import the function."""
        loop = asyncio.get_running_loop()
        self._rest, self._reason, self._ready = b"", "its process ended", loop.create_future()
        self.process, ours = await start_host(
            _host, self._pool.process_arguments, variables=self._pool.walls.variables(os.environ)
        )
        self._transport = await connected(ours, self)
        watching = _close_after(self.process, self._transport)
        self._watching = loop.create_task(watching, name="reward process end")
        try:
            await asyncio.wait_for(self._ready, start_timeout_seconds)
        except TimeoutError as error:
            raise DataError(
                f"the reward process was not ready within {start_timeout_seconds:.0f} s"
            ) from error
        self._pool.distribute()

    def send(self, calls: list[RewardCall]) -> None:
        """Write calls, which a plain function answers in order."""
        assert self._transport is not None
        now = asyncio.get_running_loop().time()
        for call in calls:
            call.begun = now
            self.calls[call.name] = call
        if len(self.calls) == len(calls):
            self._restart_timer()
        self._transport.write(b"".join(call.line for call in calls))

    async def close(self) -> None:
        """End the process."""
        self._closing = True
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.wait([self._reopening])
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        for call in self.calls.values():
            call.fail("the worker is leaving")
        self.calls.clear()
        if self.process is not None:
            _kill(self.process)
            await self.process.wait()
        if self._watching is not None:
            self._watching.cancel()

    def data_received(self, data: bytes) -> None:
        """Answers came: hand them out.

        A process that sends anything else is replaced: after that, no line of it can be told from an answer.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            for line in lines:
                self._take(line)
            check_length(self._rest)
        except RewardError as error:
            self._reason = f"something else than an answer came over its socket: {error}"
            self._replace()
            return
        if lines:
            # The next call of a plain function begins when the one before it has ended.
            self._begin_again([] if self._is_concurrent else self._at_work())
            self._pool.distribute()

    def connection_lost(self, exc: Exception | None) -> None:
        """The process is gone: fail the call at fault if it is known, send the others again, start another."""
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
        blame(self._at_work(), self._reason)
        self._pool.take_back(list(self.calls.values()))
        self.calls.clear()
        self._reopening = asyncio.get_running_loop().create_task(
            self._reopen(), name="reward process restart"
        )
        # Another process may be idle; nothing else would tell it of the calls taken back.
        self._pool.distribute()

    def _replace(self) -> None:
        if self.process is not None:
            _kill(self.process)
        if self._transport is not None:
            self._transport.abort()

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
            self._replace()
            self._pool.fail_waiting(f"the reward process did not start again: {error}")
            return False
        return True

    def _take(self, line: bytes) -> None:
        """Take one line. Raises RewardError when it is none that the process writes; then no call has ended by it."""
        assert self._ready is not None
        answer = parsed_answer(line)
        if not self._ready.done():
            if "error" in answer:
                self._ready.set_exception(DataError(str(answer["error"])))
            else:
                self._is_concurrent = answer.get("is_concurrent") is True
                self._ready.set_result(None)
            return
        call = next((call for call in self._at_work() if call.name == answer.get("call")), None)
        if call is None:
            raise RewardError("an answer to no call that it is at")
        result = result_in(answer) if "error" not in answer else RewardError(str(answer["error"]))
        del self.calls[call.name]
        if call.result.done():
            return
        if isinstance(result, RewardError):
            call.result.set_exception(result)
        else:
            call.result.set_result(result)

    def _at_work(self) -> list[RewardCall]:
        """Calls that the process computes now: all of an `async def` function, else the first."""
        return list(islice(self.calls.values(), None if self._is_concurrent else 1))

    def _restart_timer(self) -> None:
        """Time the call that the process has been at for longest."""
        if self._timer is not None:
            self._timer.cancel()
        oldest = next(iter(self.calls.values()), None)
        if oldest is None:
            return
        timeout_seconds = self._pool.timeout_seconds
        if self._is_concurrent:
            timeout_seconds += min(timeout_seconds, _late_seconds)
        due = oldest.begun + timeout_seconds
        self._timer = asyncio.get_running_loop().call_at(due, self._kill_if_late, due)

    def _begin_again(self, calls: Sequence[RewardCall]) -> None:
        """Time these calls from now on."""
        for call in calls:
            call.begun = asyncio.get_running_loop().time()
        self._restart_timer()

    def _kill_if_late(self, due: float) -> None:
        # Who looks so late was suspended, the process perhaps with it: its time begins again.
        if asyncio.get_running_loop().time() - due > suspended_seconds:
            self._begin_again(self._at_work())
            return
        if self.calls and self.process is not None:
            self._reason = f"the reward function took longer than {self._pool.timeout_seconds:g} s"
            self._pool.num_kills += 1
            _kill(self.process)


async def _close_after(process: asyncio.subprocess.Process, transport: asyncio.Transport) -> None:
    """Close this end when the process has ended."""
    await drained_end(process)
    transport.abort()


def _kill(process: asyncio.subprocess.Process) -> None:
    """End the process and its group, unless it has ended: then `_close_after` kills the group."""
    if process.returncode is None:
        kill_group(process.pid)
