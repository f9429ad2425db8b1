"""The policy endpoint in a process of its own, kept up: whatever is sent to it holds up nothing of the worker.

The worker owns what counts: the sockets that are listened at, the keys, and the record of every session. A process that
ends, or answers nothing any more, is replaced by another one, which is told of the open sessions and of what was said
in them. Clients see a broken connection, ask again, and join the call that is under way.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shutil
import socket
import tempfile
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from producers.processes.hosts import started
from producers.sessions.endpoint_limits import EndpointLimits, backlog, most_ended
from producers.sessions.listening import Listening
from producers.sessions.recorded_calls import RecordedCalls
from producers.sessions.serving import OpenSession, ServingProcess
from producers.sessions.wire import Message
from rollog.kernel.errors import EndpointDied
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.sessions.recorder import Session
    from producers.sessions.serving import ServedSession

_log = get_logger("endpoint")
_healthy_seconds = 30.0
_most_deaths = 5
"""In a row, each before it had served for `_healthy_seconds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """What the process makes its policy of: `module:function`, called with JSON arguments by name."""

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class SessionEndpoint(Protocol):
    """Where agents ask the policy: serves sessions between `start` and `close`."""

    @property
    def address(self) -> str:
        """What `/v1` is added to."""
        ...

    @property
    def socket_path(self) -> Path | None:
        """Where it listens for sandboxes."""
        ...

    async def start(self) -> None:
        """Listen. Raises ConfigError, DataError, OSError."""
        ...

    async def open(self, name: str, session: Session, served: ServedSession) -> str:
        """Serve a session, and return its key. Raises EndpointDied."""
        ...

    async def end(self, name: str) -> None:
        """End a session: its calls are cancelled, and its record changes no more. Idempotent."""
        ...

    async def close(self) -> None:
        """End every session, and listen no more. Idempotent."""
        ...


class EndpointProcess:
    """`SessionEndpoint` by a process that is started again when it ends. For one asyncio loop."""

    def __init__(
        self,
        source: PolicySource,
        *,
        parallel_calls: int = 16,
        limits: EndpointLimits | None = None,
        listening: Listening | None = None,
        has_socket: bool = False,
        silence_seconds: float = 60.0,
    ) -> None:
        """With `has_socket` it listens at a unix socket, too, for sandboxes; whoever has a key may connect there.

        A process that says nothing for `silence_seconds` is killed.
        """
        self._source = source
        self._parallel_calls = parallel_calls
        self._limits = limits or EndpointLimits()
        self._listening = listening or Listening()
        self._silence_seconds = silence_seconds
        self._directory = Path(tempfile.gettempdir()) / f"rollog-endpoint-{secrets.token_hex(8)}"
        self._has_socket = has_socket
        self._sockets: list[socket.socket] = []
        self._sessions: dict[str, OpenSession] = {}
        self._process: ServingProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._failure: EndpointDied | None = None
        self._ended_keys: deque[str] = deque(maxlen=most_ended)
        self.num_starts = 0

    @property
    def address(self) -> str:
        """What `/v1` is added to, after `start`."""
        return self._listening.address_of(self._sockets[0])

    @property
    def socket_path(self) -> Path | None:
        """Where it listens besides loopback, between `start` and `close`."""
        return self._directory / "policy.sock" if self._has_socket else None

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Listen, and start the process. Raises ConfigError, DataError where it has no policy, OSError."""
        try:
            self._listen()
            self._process = await started(self._started)
        except BaseException:
            self._forget_sockets()
            raise
        self._keeping = asyncio.create_task(self._keep_up(), name="policy endpoint")

    async def open(self, name: str, session: Session, served: ServedSession) -> str:
        """Serve a session, and return its key. Raises EndpointDied where no process stays up."""
        if self._failure is not None:
            raise self._failure
        key = secrets.token_hex(32)
        calls = RecordedCalls(
            name,
            session,
            served.generate,
            parallel_calls=self._parallel_calls,
            on_change=served.changed,
        )
        digest = hashlib.sha256(key.encode()).hexdigest()
        opened = self._sessions[name] = OpenSession(key_digest=digest, calls=calls, served=served)
        if self._process is not None:
            # A process that is gone meanwhile is replaced by one that knows the session before it listens.
            await self._process.open(name, opened)
        return key

    async def end(self, name: str) -> None:
        """End a session: its calls are cancelled, and its record changes no more. Idempotent."""
        opened = self._sessions.get(name)
        if opened is None:
            return
        await opened.calls.cancel()
        # What was delivered is told before the session's end is.
        if self._process is not None:
            await self._process.end(name)
        opened.calls.close()
        if self._sessions.pop(name, None) is not None:
            self._ended_keys.append(opened.key_digest)

    async def close(self) -> None:
        """End every session, then the process. Idempotent."""
        for name in list(self._sessions):
            await self.end(name)
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait([keeping])
        process, self._process = self._process, None
        if process is not None:
            await process.close()
        self._forget_sockets()

    def _listen(self) -> None:
        self._sockets.append(self._listening.bound())
        if self.socket_path is not None:
            # A sandbox connects as a user of its own, so everybody can reach the socket and nobody list it.
            self._directory.mkdir(mode=0o711)
            unix = socket.socket(socket.AF_UNIX)
            self._sockets.append(unix)
            unix.bind(str(self.socket_path))
            self.socket_path.chmod(0o666)
        for each in self._sockets:
            each.listen(backlog)

    def _forget_sockets(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _started(self) -> ServingProcess:
        """A process that serves all open sessions. Raises ConfigError, DataError, OSError."""
        self.num_starts += 1
        order = Message(
            {
                "policy": self._source.function,
                "arguments": self._source.arguments,
                "parallel_calls": self._parallel_calls,
                "limits": asdict(self._limits),
                "host": self._listening.public_host or self._listening.host,
                "certfile": self._listening.certfile,
                "keyfile": self._listening.keyfile,
            }
        )
        process = await ServingProcess.start(order, [each.fileno() for each in self._sockets], self._sessions)
        try:
            await process.listen(list(self._ended_keys))
        except BaseException:
            await process.close()
            raise
        return process

    async def _keep_up(self) -> None:
        """Replace the process whenever it ends, until it dies too often."""
        num_deaths = 0
        while True:
            reason, healthy_seconds = await self._death()
            num_deaths = 1 if healthy_seconds > _healthy_seconds else num_deaths + 1
            for opened in self._sessions.values():
                # An agent that cannot ask now is not idle.
                opened.calls.stir()
            if num_deaths > _most_deaths:
                self._give_up(reason)
                return
            _log.warning("the policy endpoint's process is started again", reason=reason, deaths=num_deaths)

    async def _death(self) -> tuple[str, float]:
        """Why the process ended, or why there was none, and how long it had served.

        Another one is started first where there is none.
        """
        healthy_seconds = 0.0
        try:
            if self._process is None:
                self._process = await self._started()
                for opened in self._sessions.values():
                    opened.calls.stir()
            reason = await self._process.run(self._silence_seconds)
            healthy_seconds = self._process.healthy_seconds
        except Exception as error:  # noqa: BLE001  # whatever it is, nobody serves, and another process may
            reason = f"{type(error).__name__}: {error}"
        process, self._process = self._process, None
        if process is not None:
            await process.close()
        return reason, healthy_seconds

    def _give_up(self, reason: str) -> None:
        self._failure = EndpointDied(
            f"the policy endpoint's process ended {_most_deaths + 1} times in a row, at last because: {reason}; what "
            "it said stands in this worker's log"
        )
        for opened in self._sessions.values():
            opened.served.lost(self._failure)
