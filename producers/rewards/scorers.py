"""Rewards: the user's function, called apart from the worker so that nothing it does can stop the run.

Calls go to a few processes over sockets as JSON lines, several at a time; a call that hangs is killed with its
process at the time-out, and what waited behind it is sent to the replacement. Whatever goes wrong with one call
raises RewardError for its sample alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
from collections import deque
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

from producers.rewards.functions import RewardResult, call_reward_function, load_reward_function
from rollog.kernel.errors import DataError, RewardError
from rollog.kernel.logs import get_logger
from rollog.kernel.processes import launcher_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollog.settings.generation import RewardConfig

_log = get_logger("rewards")
_start_timeout_seconds = 120.0
_reopen_seconds = 1.0
_calls_per_process = 32


class Rewards(Protocol):
    """Where rewards come from."""

    async def start(self) -> None:
        """Raises DataError when the function cannot be used."""
        ...

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        """The reward of one response. Raises RewardError."""
        ...

    async def close(self) -> None:
        """End all processes; calls that are still open raise RewardError."""
        ...


def make_rewards(function: str, config: RewardConfig) -> Rewards:
    """The rewards that the configuration asks for, not started."""
    if config.num_processes == 0:
        return InProcessRewards(function)
    return RewardPool(function, num_processes=config.num_processes, timeout_seconds=config.timeout_seconds)


class InProcessRewards:
    """The function called right here: no time-out, and it blocks the worker while it runs."""

    def __init__(self, function: str) -> None:
        self._reference = function

    async def start(self) -> None:
        """Import the function."""
        self._function = load_reward_function(self._reference)

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        """Call it."""
        return call_reward_function(self._function, prompt, response, fields)

    async def close(self) -> None:
        """Nothing to end."""


@dataclass(eq=False)
class _Call:
    """One call on its way: its line and where the result goes."""

    line: bytes
    future: asyncio.Future[RewardResult]


class RewardPool:
    """A fixed number of reward processes, each replaced when it dies or is killed."""

    def __init__(self, function: str, *, num_processes: int = 1, timeout_seconds: float = 10.0) -> None:
        self._reference = function
        self._timeout_seconds = timeout_seconds
        self._num_processes = num_processes
        self._waiting: deque[_Call] = deque()
        self._seats: list[_Seat] = []
        self._flush_scheduled = False
        self.num_kills = 0

    @property
    def pids(self) -> list[int]:
        """Process ids of the processes that run now."""
        return [seat.process.pid for seat in self._seats if seat.process is not None]

    async def start(self) -> None:
        """Start the processes and import the function in each."""
        self._seats = [_Seat(self) for _ in range(self._num_processes)]
        await asyncio.gather(*(seat.open() for seat in self._seats))

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        """The reward of one response. Raises RewardError."""
        line = json.dumps([prompt, response, dict(fields)]).encode() + b"\n"
        call = _Call(line, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if not self._flush_scheduled:
            # Calls made in the same turn of the loop share one write.
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self.distribute)
        return await call.future

    async def close(self) -> None:
        """End all processes."""
        while self._waiting:
            _fail(self._waiting.popleft(), "the worker is leaving")
        await asyncio.gather(*(seat.close() for seat in self._seats))

    def distribute(self) -> None:
        """Send waiting calls to the seats that have room, the least busy first."""
        self._flush_scheduled = False
        while self._waiting:
            ready = [seat for seat in self._seats if seat.room > 0]
            if not ready:
                return
            seat = min(ready, key=lambda seat: len(seat.calls))
            # With one seat everything that fits goes in one write; with several they take turns.
            count = min(seat.room, max(1, len(self._waiting) // len(ready)), len(self._waiting))
            seat.send([self._waiting.popleft() for _ in range(count)])

    def fail_waiting(self, reason: str) -> None:
        """Fail what waits while no process is there to take it."""
        while self._waiting and not any(seat.is_open for seat in self._seats):
            _fail(self._waiting.popleft(), reason)

    def give_back(self, calls: list[_Call]) -> None:
        """Take back calls that were sent to a process that died before it got to them."""
        self._waiting.extendleft(reversed(calls))

    def spawn_arguments(self, descriptor: int) -> list[str]:
        """Command line of one process."""
        command = [sys.executable, "-m", "producers.rewards.process", str(descriptor), self._reference]
        return launcher_command(command)

    @property
    def timeout_seconds(self) -> float:
        """Longest time of one call."""
        return self._timeout_seconds


class _Seat(asyncio.Protocol):
    """The place of one reward process in the pool, and this end of its socket."""

    def __init__(self, pool: RewardPool) -> None:
        self._pool = pool
        self.calls: deque[_Call] = deque()
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

    def send(self, calls: list[_Call]) -> None:
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
            _fail(call, "the worker is leaving")
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
            _fail(self.calls.popleft(), self._reason)
        self._pool.give_back(list(self.calls))
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
        if call.future.done():
            return
        if "error" in answer:
            call.future.set_exception(RewardError(answer["error"]))
        else:
            call.future.set_result(
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
        self._timer = loop.call_later(self._pool.timeout_seconds, self._kill_if_late)

    def _kill_if_late(self) -> None:
        if self.calls and self.process is not None:
            self._reason = f"the reward function took longer than {self._pool.timeout_seconds:g} s"
            self._pool.num_kills += 1
            _kill(self.process)


class ShuffledRewards:
    """The negative control: each response gets the reward that another response earned.

    Rewards are exchanged with a reservoir of earlier ones; the first response of all finds it empty and gets 0. Rewards
    of turns are left out: another response's turns are not this one's.
    """

    def __init__(self, rewards: Rewards, *, seed: int | str, size: int = 256) -> None:
        self._rewards = rewards
        self._random = random.Random(seed)  # noqa: S311  # statistics, not secrets
        self._reservoir: list[float] = []
        self._size = size

    async def start(self) -> None:
        """Start what is shuffled."""
        await self._rewards.start()

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        """Another response's reward; what this one earned is the component `own_reward`."""
        own = await self._rewards.score(prompt, response, fields)
        components = {**own.components, "own_reward": own.reward}
        return RewardResult(reward=self._exchange(own.reward), components=components)

    async def close(self) -> None:
        """Close what is shuffled."""
        await self._rewards.close()

    def _exchange(self, reward: float) -> float:
        if not self._reservoir:
            self._reservoir.append(reward)
            return 0.0
        place = self._random.randrange(len(self._reservoir))
        other = self._reservoir[place]
        if len(self._reservoir) < self._size:
            self._reservoir.append(reward)
        else:
            self._reservoir[place] = reward
        return other


def _fail(call: _Call, reason: str) -> None:
    if not call.future.done():
        call.future.set_exception(RewardError(f"the reward was not computed: {reason}"))


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
