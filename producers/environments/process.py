"""One process of the pool, seen from the worker: starting it, calling its episodes, timing them, ending it.

It is a host (`producers/processes/hosts.py`): calls and answers go over its socket, and what it leaves behind in its
process group is killed with it. It is never started again: the pool makes another.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from producers.processes.ending import kill_group, way_of_ending
from producers.processes.hosts import (
    connected,
    drain_seconds,
    drained_end,
    start_host,
    start_timeout_seconds,
    suspended_seconds,
)
from producers.processes.walls import ProcessWalls
from rollog.kernel.errors import DataError, EnvironmentFailed, EnvironmentProcessEnded, EnvironmentTimedOut
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_log = get_logger("environments")
_host = "producers.environments.host"
_most_other_bytes = 1 << 18
"""What a line holds besides the texts: names, seats, rewards, `info`, the words of an error."""
_bytes_per_escaped_byte = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLimits:
    """What environments may take.

    `num_processes` is for each interpreter. A process holds `episodes_per_process` episodes at once, and when it is
    killed all of them fail. `variables` names environment variables that it gets besides the usual ones.
    """

    num_processes: int = 2
    episodes_per_process: int = 16
    reset_timeout_seconds: float = 60.0
    step_timeout_seconds: float = 30.0
    max_observation_bytes: int = 262_144
    max_snapshot_bytes: int = 4_194_304
    max_memory_bytes: int = 8 << 30
    variables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_processes", "episodes_per_process", "max_observation_bytes", "max_snapshot_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} is below 1")
        for name in ("reset_timeout_seconds", "step_timeout_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)} is not above 0")

    @property
    def most_line_bytes(self) -> int:
        """The longest line that a process may write: every byte of a text may be escaped as six."""
        longest = max(self.max_observation_bytes, self.max_snapshot_bytes)
        return _bytes_per_escaped_byte * longest + _most_other_bytes


class ProcessEpisode(Protocol):
    """An episode, as its process knows it."""

    def lose_process(self, error: EnvironmentFailed) -> None:
        """The process has ended, or goes on without the episode."""
        ...


@dataclass(eq=False)
class EnvironmentCall:
    """One call in flight. An answer bears the name of its call, which is drawn at random.

    Nobody waits for a late one any more; its answer may come all the same.
    """

    episode: str
    operation: str
    timeout_seconds: float
    answer: asyncio.Future[dict[str, Any]]
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    timer: asyncio.TimerHandle | None = None
    is_late: bool = False

    def fail(self, error: EnvironmentFailed) -> None:
        """Raise the error where the answer is awaited, unless nobody awaits it any more."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.answer.done():
            self.answer.set_exception(error)


class EnvironmentProcess(asyncio.Protocol):
    """One process, from its start to its end, and this end of its socket.

    | state    | reached by                                              | its calls                               |
    | ---      | ---                                                     | ---                                     |
    | starting | `started`, asked for by the first episode               | it has none                             |
    | serving  | its first line; the answers of all late calls           | timed; in order within an episode       |
    | doubtful | a late call, while it holds other episodes              | the same; it gets no further episodes   |
    | ended    | `end`, a late call or a doubtful one without others, a  | all fail, and so do all of its episodes |
    |          | line that is no answer, its own                         |                                         |

    Example: episodes A, B and C are in it, A and B at a step, C waits for its agent. A's step takes longer than 30 s:
    A's call raises EnvironmentTimedOut, A is told to close, and its place is free. B and C go on. Where A's method can
    be cancelled, A is closed, and the process serves on. Where it hangs, the process is killed once B and C have left.
    """

    def __init__(
        self, limits: EnvironmentLimits, python: str | None, on_end: Callable[[EnvironmentProcess], None]
    ) -> None:
        self._limits = limits
        self._python = python
        self._on_end = on_end
        self.episodes: dict[str, ProcessEpisode] = {}
        self.was_killed = False
        self._calls: dict[str, EnvironmentCall] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._losing: asyncio.Task[None] | None = None
        self._rest = bytearray()
        self._end: EnvironmentFailed | None = None

    @property
    def pid(self) -> int | None:
        """Its process id, once it has one."""
        return None if self._process is None else self._process.pid

    async def started(self) -> None:
        """Start it, or wait until it has started. Raises DataError where it cannot, EnvironmentFailed once it ended."""
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start(), name="environment process")
            # Whoever waits for it is told; where nobody does any more, nobody asks for what it raised.
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._starting)
        if self._end is not None:
            raise self._end

    async def call(
        self, episode: str, operation: str, timeout_seconds: float, **fields: Any
    ) -> dict[str, Any]:
        """The answer to one call. Raises EnvironmentFailed, when it is late EnvironmentTimedOut."""
        return await self.send(episode, operation, timeout_seconds, **fields).answer

    def send(self, episode: str, operation: str, timeout_seconds: float, **fields: Any) -> EnvironmentCall:
        """Write one call. It is timed whether its answer is awaited or not.

        Its time begins when those of its episode before it are answered: the process serves them one after another.
        """
        loop = asyncio.get_running_loop()
        call = EnvironmentCall(episode, operation, timeout_seconds, loop.create_future())
        # Where nobody awaits it, as with a close, nobody asks for what it raised.
        call.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        if self._end is not None or self._transport is None:
            call.fail(self._end or EnvironmentFailed("the environment's process is not there"))
            return call
        line = json.dumps({"call": call.name, "episode": episode, "operation": operation, **fields})
        has_turn = self._next_of(episode) is None
        self._calls[call.name] = call
        if has_turn:
            self._time(call)
        self._transport.write(line.encode() + b"\n")
        return call

    @property
    def is_doubtful(self) -> bool:
        """Whether a call is late and has not been answered: something in it may hang."""
        return any(call.is_late for call in self._calls.values())

    def leave(self, episode: str) -> bool:
        """Let go of an episode; false where it has left already. A doubtful process without episodes is killed."""
        if self.episodes.pop(episode, None) is None:
            return False
        if not self.episodes and self.is_doubtful:
            self.end(EnvironmentFailed("its process was killed, since one of its calls hung"))
        return True

    def end(self, error: EnvironmentFailed, *, late: EnvironmentCall | None = None) -> None:
        """Kill the process with its group; its calls and episodes fail. Idempotent."""
        if self._end is not None:
            return
        self._end = error
        if self._process is not None and self._process.returncode is None:
            self.was_killed = True
            kill_group(self._process.pid)
        self._on_end(self)
        if self._transport is not None:
            self._transport.abort()
        if not self._ready.done():
            self._ready.set_result(None)
        for call in self._calls.values():
            call.fail(EnvironmentTimedOut(str(error)) if call is late else error)
        self._calls.clear()
        for episode in list(self.episodes.values()):
            episode.lose_process(error)

    async def gone(self) -> None:
        """Wait until a process that was ended is gone, with everything that it left in its group."""
        if self._starting is not None and not self._starting.done():
            await asyncio.wait([self._starting])
        if self._process is not None:
            await self._process.wait()
            kill_group(self._process.pid)
        for task in (self._watching, self._losing):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    async def _start(self) -> None:
        try:
            self._process, ours = await self._spawn()
            self._transport = await connected(ours, self)
        except OSError as error:
            failure = DataError(f"python = {self._python!r} cannot be started: {error}")
            self.end(EnvironmentFailed(str(failure)))
            raise failure from error
        watching = self._watch(self._process)
        self._watching = asyncio.get_running_loop().create_task(watching, name="environment process end")
        try:
            await asyncio.wait_for(asyncio.shield(self._ready), start_timeout_seconds)
        except TimeoutError:
            self.end(
                EnvironmentFailed(
                    f"the environment's process was not ready within {start_timeout_seconds:.0f} s"
                )
            )
        if self._end is not None:
            # It was ended while it started.
            kill_group(self._process.pid)
            if self._transport is not None:
                self._transport.abort()

    async def _spawn(self) -> tuple[asyncio.subprocess.Process, socket.socket]:
        limits = self._limits
        told = (limits.max_memory_bytes, limits.max_observation_bytes, limits.max_snapshot_bytes)
        walls = ProcessWalls(environment=limits.variables, max_memory_bytes=limits.max_memory_bytes)
        # The order of sets of texts depends on it, and with it what some environments say.
        variables = walls.variables(os.environ) | {"PYTHONHASHSEED": "0"}
        return await start_host(_host, [*map(str, told)], variables=variables, python=self._python)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """End this side when the process has ended."""
        status = await drained_end(process)
        self.end(_ended(status, self._python))

    def data_received(self, data: bytes) -> None:
        """Answers came: hand them out. A process that sends anything else is killed."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        try:
            for line in lines:
                self._take(line)
            self._check_length()
        except (ValueError, RecursionError) as error:
            self.end(
                EnvironmentFailed(
                    f"something else than an answer came from the environment's process: {error}"
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """The process has closed its end, most likely by ending; how it ended is asked for shortly."""
        del exc
        self._transport = None
        if self._end is None and self._process is not None:
            self._losing = asyncio.get_running_loop().create_task(
                self._lost(self._process), name="environment end"
            )

    async def _lost(self, process: asyncio.subprocess.Process) -> None:
        try:
            status: int | None = await asyncio.wait_for(process.wait(), drain_seconds)
        except TimeoutError:
            status = None
        self.end(_ended(status, self._python))

    def _check_length(self) -> None:
        """Raises ValueError when the part of a line that is there is too long already."""
        if len(self._rest) > self._limits.most_line_bytes:
            raise ValueError(f"a line of more than {self._limits.most_line_bytes} bytes")

    def _take(self, line: bytes) -> None:
        """Take one line. Raises ValueError, RecursionError when it is none that the process writes."""
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError(f"a line that is no answer: {line[:80]!r}")
        if not self._ready.done():
            self._ready.set_result(None)
            return
        call = self._calls.pop(str(answer.get("call")), None)
        if call is None:
            raise ValueError("an answer to no call that it is at")
        if call.timer is not None:
            call.timer.cancel()
        self._time_next(call.episode)
        if not call.answer.done():
            call.answer.set_result(answer)

    def _time_next(self, episode: str) -> None:
        """Time the call of the episode whose turn it is now, if one waits."""
        call = self._next_of(episode)
        if call is not None and call.timer is None:
            self._time(call)

    def _next_of(self, episode: str) -> EnvironmentCall | None:
        """The first call of the episode that is waited for."""
        calls = (call for call in self._calls.values() if call.episode == episode and not call.is_late)
        return next(calls, None)

    def _time(self, call: EnvironmentCall) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + call.timeout_seconds
        call.timer = loop.call_at(due, self._end_if_late, call, due)

    def _end_if_late(self, call: EnvironmentCall, due: float) -> None:
        # Who looks so late was suspended, the process perhaps with it: its time begins again.
        if asyncio.get_running_loop().time() - due > suspended_seconds:
            self._time(call)
            return
        reason = f"a call of {call.operation} took longer than {call.timeout_seconds:g} s"
        episodes = len(self.episodes)
        _log.warning("environment call late", reason=reason, pid=self.pid, episodes=episodes)
        if self.episodes.keys() <= {call.episode}:
            self.end(EnvironmentFailed(f"{reason}, and its process was killed"), late=call)
        else:
            self._go_on_without(call, EnvironmentTimedOut(reason))

    def _go_on_without(self, late: EnvironmentCall, error: EnvironmentTimedOut) -> None:
        """Fail the episode of a late call alone: it is told to close, and what is left of it is not waited for."""
        late.fail(error)
        late.is_late = True
        others = [call for call in self._calls.values() if call.episode == late.episode]
        if all(call.operation != "close" for call in others):
            others.append(self.send(late.episode, "close", late.timeout_seconds))
        for call in others:
            call.fail(error)
            call.is_late = True
        episode = self.episodes.get(late.episode)
        if episode is not None:
            episode.lose_process(error)


def _ended(status: int | None, python: str | None) -> EnvironmentProcessEnded:
    """What is known of a process that has ended by itself."""
    if status is None:
        return EnvironmentProcessEnded("the environment's process closed its socket")
    hint = (
        "" if python is None else f"; it ran under python = {python!r}, which has to be Python 3.10 or later"
    )
    return EnvironmentProcessEnded(f"the environment's process ended {way_of_ending(status)}{hint}")
