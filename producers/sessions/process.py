"""The policy endpoint in a process of its own, kept up: whatever is sent to it holds up nothing of the worker.

The worker owns what counts: the sockets that are listened at, the keys, and the record of every session. A process that
ends, or answers nothing any more, is replaced by another one, which is told of the open sessions and of what was said
in them. Clients see a broken connection, ask again, and join the call that is under way.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from producers.rewards.walls import kill_group
from producers.sessions.endpoint_limits import EndpointLimits, in_address
from producers.sessions.errors import CallRefused, SessionClosed, SessionFailed
from producers.sessions.recorded_calls import RecordedCalls
from producers.sessions.recording import Counted
from producers.sessions.wire import Message, call_message, error_message, next_message, packed, question_of
from rollog.kernel.errors import ConfigError, DataError, EndpointDied
from rollog.kernel.logs import get_logger
from rollog.kernel.processes import launcher_command
from rollog.settings.agent import is_loopback

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from producers.engines.ports import Generation
    from producers.sessions.recorder import Session

_log = get_logger("endpoint")
_host = "producers.sessions.host"
_backlog = 512
"""Connections that wait while there is no process."""
_start_seconds = 120.0
_end_seconds = 5.0
_confirm_seconds = 10.0
"""How long the process may take to open or end one session."""
_healthy_seconds = 30.0
_most_deaths = 5
"""In a row, each within `_healthy_seconds` of its start."""
_ping_seconds = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """What the process makes its policy of: `module:function`, called with JSON arguments by name."""

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where the endpoint listens: host and port (0: a free one), and the name under which agents reach it.

    With `certfile` and `keyfile`, PEM files, it speaks HTTPS there; anywhere but on loopback it needs them.
    """

    host: str = "127.0.0.1"
    port: int = 0
    public_host: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    def bound(self) -> socket.socket:
        """A bound socket. Raises ValueError where others would read keys, OSError where it cannot be had."""
        if self.certfile is None and not is_loopback(self.host):
            raise ValueError(
                f"the policy endpoint listens on loopback only, not on {self.host}, without a certificate"
            )
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        return socket.create_server((self.host, self.port), family=family)

    def address_of(self, bound: socket.socket) -> str:
        """What `/v1` is added to."""
        scheme = "http" if self.certfile is None else "https"
        return f"{scheme}://{in_address(self.public_host or self.host)}:{bound.getsockname()[1]}"


class ServedSession(Protocol):
    """What a session needs of its worker."""

    async def generate(self, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """As `recorded_calls.Generate`."""
        ...

    def changed(self, num_calls: int) -> None:
        """A call began, ended or was refused; so many are under way."""
        ...

    def lost(self, error: EndpointDied) -> None:
        """Nobody serves the session any more."""
        ...


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """One open session."""

    key_digest: str
    calls: RecordedCalls
    served: ServedSession


class EndpointProcess:
    """`SessionEndpoint` by a process that is started again when it ends. For one asyncio loop."""

    def __init__(
        self,
        source: PolicySource,
        *,
        parallel_calls: int = 16,
        limits: EndpointLimits | None = None,
        listening: Listening = Listening(),
        has_socket: bool = False,
        silence_seconds: float = 60.0,
    ) -> None:
        """With `has_socket` it listens at a unix socket, too, for sandboxes; whoever has a key may connect there.

        A process that says nothing for `silence_seconds` is killed.
        """
        self._source = source
        self._parallel_calls = parallel_calls
        self._limits = limits or EndpointLimits()
        self._listening = listening
        self._silence_seconds = silence_seconds
        self._directory = Path(tempfile.gettempdir()) / f"rollog-endpoint-{secrets.token_hex(8)}"
        self._has_socket = has_socket
        self._sockets: list[socket.socket] = []
        self._sessions: dict[str, _Open] = {}
        self._process: _Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._failure: EndpointDied | None = None
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
        """Listen, and start the process. Raises ConfigError and DataError where it has no policy, OSError."""
        try:
            self._listen()
            self._process = await self._started()
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
        opened = self._sessions[name] = _Open(key_digest=digest, calls=calls, served=served)
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
        del self._sessions[name]

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
            each.listen(_backlog)

    def _forget_sockets(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _started(self) -> _Process:
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
        process = await _Process.start(order, [each.fileno() for each in self._sockets], self._sessions)
        process.listen()
        return process

    async def _keep_up(self) -> None:
        """Replace the process whenever it ends, until it dies too often."""
        num_deaths = 0
        while True:
            began = time.monotonic()
            reason = await self._death()
            num_deaths = 1 if time.monotonic() - began > _healthy_seconds else num_deaths + 1
            if num_deaths > _most_deaths:
                self._give_up(reason)
                return
            _log.warning("the policy endpoint's process is started again", reason=reason, deaths=num_deaths)

    async def _death(self) -> str:
        """Why the process ended, or why there was none; another one is started first where there is none."""
        try:
            if self._process is None:
                self._process = await self._started()
            reason = await self._process.run(self._silence_seconds)
        except (ConfigError, DataError, OSError) as error:
            reason = str(error)
        process, self._process = self._process, None
        if process is not None:
            await process.close()
        return reason

    def _give_up(self, reason: str) -> None:
        self._failure = EndpointDied(
            f"the policy endpoint's process ended {_most_deaths + 1} times in a row, at last because: {reason}"
        )
        for opened in self._sessions.values():
            opened.served.lost(self._failure)


class _Process:
    """One process, from its start to its end, and the worker's side of what is said with it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sessions: Mapping[str, _Open],
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._sessions = sessions
        self._answering: set[asyncio.Task[None]] = set()
        self._confirming: dict[tuple[str, str], asyncio.Event] = {}
        self._heard_at = time.monotonic()
        self._is_gone = asyncio.Event()

    @classmethod
    async def start(
        cls, order: Message, descriptors: Sequence[int], sessions: Mapping[str, _Open]
    ) -> _Process:
        """Start one and wait until it serves. Raises ConfigError, DataError, OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            words = [str(each) for each in (theirs.fileno(), *descriptors)]
            process = await asyncio.create_subprocess_exec(
                *launcher_command([sys.executable, "-m", _host, *words]),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno(), *descriptors],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        started = cls(process, *await asyncio.open_connection(sock=ours), sessions)
        try:
            started._say(order)
            async with asyncio.timeout(_start_seconds):
                await started._ready()
        except TimeoutError as error:
            await started.close()
            raise DataError(f"the policy endpoint did not start within {_start_seconds:g} s") from error
        except BaseException:
            await started.close()
            raise
        return started

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def listen(self) -> None:
        """Have it serve all open sessions, told what was said in them, and only then listen."""
        for name, opened in self._sessions.items():
            for call in opened.calls.history:
                self._say(call_message({"recall": name}, call))
            self._say(Message({"open": name, "key": opened.key_digest}))
        self._say(Message({"listen": True}))

    async def open(self, name: str, opened: _Open) -> None:
        """Have it serve a new session, and wait until it does."""
        await self._confirmed("opened", Message({"open": name, "key": opened.key_digest}), name)

    async def end(self, name: str) -> None:
        """Have it serve a session no more, and wait until it has said all that it knows of it."""
        await self._confirmed("ended", Message({"end": name}), name)

    async def _confirmed(self, word: str, order: Message, name: str) -> None:
        """Give an order, and wait until it is confirmed, the process is gone, or the time is up."""
        confirmed = self._confirming[word, name] = asyncio.Event()
        self._say(order)
        waiting = [asyncio.ensure_future(each.wait()) for each in (confirmed, self._is_gone)]
        try:
            await asyncio.wait(waiting, timeout=_confirm_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
            del self._confirming[word, name]

    async def run(self, silence_seconds: float) -> str:
        """Serve what it asks until it ends, or says nothing for so long, and return what became of it."""
        reading = asyncio.create_task(self._read(), name="what the endpoint says")
        try:
            while not reading.done():
                self._say(Message({"ping": 0}))
                await asyncio.wait([reading], timeout=_ping_seconds)
                if not reading.done() and time.monotonic() - self._heard_at > silence_seconds:
                    # After a pause of the worker itself, what was said meanwhile is heard first.
                    await asyncio.wait([reading], timeout=_ping_seconds)
                    if time.monotonic() - self._heard_at > silence_seconds:
                        return f"it said nothing for {silence_seconds:g} s"
            return reading.result()
        finally:
            reading.cancel()

    async def close(self) -> None:
        """End it, by force where it does not end by itself. Idempotent."""
        self._is_gone.set()
        for each in list(self._answering):
            each.cancel()
        self._writer.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _end_seconds)
        kill_group(self._process)
        await self._process.wait()

    async def _ready(self) -> None:
        message = await next_message(self._reader)
        if message is None:
            status = await self._process.wait()
            raise DataError(f"the process of the policy endpoint ended with status {status} before it served")
        if "broken" in message.head:
            raise (ConfigError if message.head["is_setting"] else DataError)(message.head["broken"])

    async def _read(self) -> str:
        """Heed what it says until it ends, and return why that was."""
        try:
            while (message := await next_message(self._reader)) is not None:
                self._heard_at = time.monotonic()
                self._heed(message)
        except (OSError, EOFError, ValueError, LookupError) as error:
            return f"what it says broke off: {type(error).__name__}: {error}"
        status = self._process.returncode
        return "it ended" if status is None else f"it ended with status {status}"

    def _heed(self, message: Message) -> None:
        head = message.head
        for word in head.keys() & {"opened", "ended"}:
            if (confirmed := self._confirming.get((word, head[word]))) is not None:
                confirmed.set()
            return
        opened = self._sessions.get(head.get("session", ""))
        match head:
            case {"ask": number}:
                self._begin(self._answer(number, opened, message))
            case {"delivered": turn} if opened is not None:
                opened.calls.deliver(turn)
            case {"refused": kind} if opened is not None:
                opened.calls.refuse(Counted(kind))
            case {"counted": kinds} if opened is not None:
                opened.calls.count(list(map(Counted, kinds)))

    def _begin(self, answer: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(answer)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, number: int, opened: _Open | None, message: Message) -> None:
        try:
            if opened is None:
                raise SessionClosed("the session has ended and takes no further call")
            call = await opened.calls.ask(question_of(message))
        except (CallRefused, SessionFailed) as error:
            self._say(error_message(number, error))
        else:
            self._say(call_message({"answer": number}, call))

    def _say(self, message: Message) -> None:
        self._writer.write(packed(message))
