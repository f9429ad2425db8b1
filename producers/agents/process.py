"""Agents that are functions: one process of the worker imports the function and forks one for each session.

What a session's process prints goes nowhere. Order and answer go over a socket of its own, one line each way. The
process that forks is started with the first session, and again where it has ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from producers.agents.results import result_of
from producers.processes.ending import kill_group, way_of_ending
from producers.processes.hosts import drain_seconds, start_host, start_timeout_seconds
from producers.processes.walls import ProcessWalls
from rollog.kernel.errors import AgentFailed, DataError
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.agents.ports import AgentOrder, AgentResult

_log = get_logger("agents")
_host = "producers.agents.host"
_packet_bytes = 1 << 16
_most_answer_bytes = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionLimits:
    """What the processes of a function get: variables of the worker's environment, and memory.

    `kill_seconds` is what the process that forks may take to end a session, and itself; then it is killed.
    """

    variables: tuple[str, ...] = ()
    max_memory_bytes: int = 4 << 30
    kill_seconds: float = 10.0


class FunctionAgents:
    """Runs `module:function` under an interpreter, by default this one."""

    def __init__(
        self, function: str, python: str | None = None, limits: FunctionLimits | None = None
    ) -> None:
        self._function = function
        self._python = python
        self._limits = limits or FunctionLimits()
        self._host: AgentHost | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Of the process that forks, while there is one."""
        return None if self._host is None else self._host.pid

    async def start(self) -> None:
        """Import the function. Raises DataError where that fails."""
        await self._started()

    async def run(self, order: AgentOrder) -> AgentResult:
        """One session in a process of its own. Raises AgentFailed; DataError where the function cannot be imported."""
        host = await self._started()
        ours, theirs = socket.socketpair()
        reading: asyncio.Task[bytes] | None = None
        writer: asyncio.StreamWriter | None = None
        session = host.begin(order.name, theirs)
        try:
            reader, writer = await asyncio.open_connection(sock=ours, limit=_most_answer_bytes)
            writer.write(_line_of(order))
            reading = asyncio.create_task(reader.readline(), name=f"answer of {order.name}")
            either: list[asyncio.Future[Any]] = [reading, session.ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({reading}, timeout=drain_seconds)
            line = _line_read(reading)
        finally:
            if reading is not None:
                reading.cancel()
            await host.end(session)
            if writer is None:
                ours.close()
            else:
                writer.close()
        return _result(line, session.ended)

    async def close(self) -> None:
        """End all sessions and the process that forked them. Idempotent."""
        self._is_closed = True
        async with self._starting:
            if self._host is not None:
                await self._host.close()

    async def _started(self) -> AgentHost:
        async with self._starting:
            if self._is_closed:
                raise AgentFailed("the agents are closed: the worker is leaving")
            if self._host is None or self._host.has_ended:
                if self._host is not None:
                    await self._host.close()
                self._host = await AgentHost.start(self._function, self._python, self._limits)
            return self._host


@dataclass(eq=False)
class AgentSession:
    """One forked process; `ended` has its exit status once it is dead, None where its host died with it."""

    name: str
    ended: asyncio.Future[int | None]


class AgentHost:
    """The process that forks, from its start to its end."""

    def __init__(
        self, control: socket.socket, process: asyncio.subprocess.Process, kill_seconds: float
    ) -> None:
        self._kill_seconds = kill_seconds
        self._control = control
        self._process = process
        self._sessions: dict[str, AgentSession] = {}
        self._reading: asyncio.Task[None] | None = None
        self.has_ended = False

    @classmethod
    async def start(cls, function: str, python: str | None, limits: FunctionLimits) -> AgentHost:
        """Start it and wait until it has imported the function. Raises DataError."""
        walls = ProcessWalls(environment=limits.variables, max_memory_bytes=limits.max_memory_bytes)
        try:
            process, ours = await start_host(
                _host,
                [str(limits.max_memory_bytes), function],
                variables=walls.variables(os.environ),
                python=python,
                kind=socket.SOCK_SEQPACKET,
            )
        except OSError as error:
            raise DataError(f"agent.python = {python!r} cannot be started: {error}") from error
        host = cls(ours, process, limits.kill_seconds)
        try:
            await host._imported(function, python)
        except BaseException:
            await host.close()
            raise
        host._reading = asyncio.create_task(host._read(), name="agents' process")
        return host

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def begin(self, name: str, theirs: socket.socket) -> AgentSession:
        """Have a process forked that has this end of a socket. Raises AgentFailed."""
        session = AgentSession(name, asyncio.get_running_loop().create_future())
        with theirs:
            try:
                socket.send_fds(self._control, [_packet({"begin": name})], [theirs.fileno()])
            except OSError as error:
                raise AgentFailed(f"the agents' process takes no further session: {error}") from error
        self._sessions[name] = session
        return session

    async def end(self, session: AgentSession) -> None:
        """Kill a session's process with all that descends from it, and wait until it is dead.

        A host that does not do that in its time is ended with all sessions: it was stopped, or hangs.
        """
        if session.ended.done():
            return
        with suppress(OSError):
            self._control.send(_packet({"kill": session.name}))
        await asyncio.wait({session.ended}, timeout=self._kill_seconds)
        if not session.ended.done():
            _log.warning("the agents' process ends no session any more and is killed", pid=self.pid)
            await self.close()

    async def close(self) -> None:
        """End it with all sessions, and wait until it is gone. Idempotent."""
        self.has_ended = True
        # The process kills its sessions when this end is closed, and only then can they be told from others.
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        self._control.close()
        try:
            await asyncio.wait_for(self._process.wait(), self._kill_seconds)
        except TimeoutError:
            kill_group(self._process.pid)
            await self._process.wait()
        kill_group(self._process.pid)
        self._lose_all()

    async def _imported(self, function: str, python: str | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(start_timeout_seconds):
                packet = await loop.sock_recv(self._control, _packet_bytes)
        except TimeoutError as error:
            raise DataError(
                f"agent.function = {function!r} was not imported within {start_timeout_seconds:g} s"
            ) from error
        if not packet:
            hint = "" if python is None else f"; agent.python = {python!r} has to be Python 3.10 or later"
            raise DataError(
                f"the process that imports agent.function = {function!r} ended with status "
                f"{await self._process.wait()}{hint}"
            )
        answer = json.loads(packet)
        if "error" in answer:
            raise DataError(str(answer["error"]))

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while packet := await loop.sock_recv(self._control, _packet_bytes):
                ended = json.loads(packet)
                session = self._sessions.pop(ended["ended"], None)
                if session is not None and not session.ended.done():
                    session.ended.set_result(int(ended["status"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("the agents' process broke off", error=str(error))
        self.has_ended = True
        self._lose_all()

    def _lose_all(self) -> None:
        self.has_ended = True
        for session in self._sessions.values():
            if not session.ended.done():
                session.ended.set_result(None)
        self._sessions.clear()


def _line_of(order: AgentOrder) -> bytes:
    policy = {"base_url": f"{order.address}/v1", "api_key": order.key, "model": order.model}
    task = {
        "prompt_id": order.prompt_id,
        "prompt": order.prompt,
        "fields": dict(order.fields),
        "seed": order.seed,
    }
    return json.dumps({"policy": policy, "task": task}).encode() + b"\n"


def _line_read(reading: asyncio.Task[bytes]) -> bytes:
    """What was read; nothing where it did not come to its end. Raises AgentFailed for an answer that is too long."""
    if not reading.done():
        return b""
    try:
        return reading.result()
    except ValueError as error:
        raise AgentFailed(f"the agent's answer is over {_most_answer_bytes} bytes") from error
    except OSError:
        return b""


def _result(line: bytes, ended: asyncio.Future[int | None]) -> AgentResult:
    if not line.endswith(b"\n"):
        status = ended.result() if ended.done() else None
        how = "with the process that started it" if status is None else way_of_ending(status)
        raise AgentFailed(f"the agent's process ended {how} and gave no answer")
    try:
        answer: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AgentFailed(f"the agent's process gave an answer that is no JSON: {error}") from error
    if not isinstance(answer, dict):
        raise AgentFailed("the agent's process gave an answer that is no JSON object")
    if "error" in answer:
        raise AgentFailed(f"the agent raised {answer['error']}")
    return result_of(answer)


def _packet(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()
