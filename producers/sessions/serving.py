"""One process that serves the policy endpoint, and the worker's side of what is said with it (`host.py`)."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from producers.processes.ending import kill_group, way_of_ending
from producers.processes.hosts import HostEnded, start_host, start_timeout_seconds
from producers.sessions.errors import CallRefused, SessionClosed, SessionFailed
from producers.sessions.recording import Counted
from producers.sessions.wire import Message, call_message, error_message, next_message, packed, question_of
from rollog.kernel.errors import ConfigError, DataError, EndpointDied

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from producers.engines.ports import Generation
    from producers.sessions.recorded_calls import RecordedCalls

_host = "producers.sessions.host"
_end_seconds = 5.0
_confirm_seconds = 10.0
"""How long the process may take to open or end one session."""
_ping_seconds = 5.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """One open session."""

    key_digest: str
    calls: RecordedCalls
    served: ServedSession


class ServingProcess:
    """One process, from its start to its end, and the worker's side of what is said with it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sessions: Mapping[str, OpenSession],
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._sessions = sessions
        self._answering: set[asyncio.Task[None]] = set()
        self._confirming: dict[tuple[str, str], asyncio.Event] = {}
        self._began_at = self._heard_at = time.monotonic()
        self._is_gone = asyncio.Event()

    @classmethod
    async def start(
        cls, order: Message, descriptors: Sequence[int], sessions: Mapping[str, OpenSession]
    ) -> ServingProcess:
        """Start one and wait until it serves. Raises ConfigError, DataError, OSError."""
        process, ours = await start_host(
            _host,
            [str(each) for each in descriptors],
            variables={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            shared=descriptors,
            is_ours=True,
        )
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:  # cancelled, too
            ours.close()
            kill_group(process.pid)
            await process.wait()
            raise
        started = cls(process, reader, writer, sessions)
        try:
            started._say(order)
            async with asyncio.timeout(start_timeout_seconds):
                await started._ready()
        except TimeoutError as error:
            await started.close()
            raise DataError(
                f"the policy endpoint did not start within {start_timeout_seconds:g} s: the machine may be overloaded, "
                "or the model's tokenizer takes longer to load"
            ) from error
        except BaseException:
            await started.close()
            raise
        return started

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def healthy_seconds(self) -> float:
        """From when it served to when it was last heard."""
        return self._heard_at - self._began_at

    async def listen(self, ended_keys: Sequence[str] = ()) -> None:
        """Have it serve all open sessions, told what was said in them, and only then listen.

        Sessions that are opened meanwhile are among them. Where it ends meanwhile, `run` says so.
        """
        told: set[str] = set()
        while untold := [name for name in self._sessions if name not in told]:
            for name in untold:
                told.add(name)
                if (opened := self._sessions.get(name)) is not None:
                    await self._recall(name, opened)
        self._say(Message({"forget": list(ended_keys)}))
        self._say(Message({"listen": True}))

    async def _recall(self, name: str, opened: OpenSession) -> None:
        for call in opened.calls.history:
            self._say(call_message({"recall": name}, call))
            with suppress(OSError):
                await self._writer.drain()
        self._say(Message({"open": name, "key": opened.key_digest}))

    async def open(self, name: str, opened: OpenSession) -> None:
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
            self._confirming.pop((word, name), None)

    async def run(self, silence_seconds: float) -> str:
        """Serve what it asks until it ends, or says nothing for so long, and return what became of it."""
        self._began_at = self._heard_at = time.monotonic()
        reading = asyncio.create_task(self._read(), name="what the endpoint says")
        ping_seconds = min(_ping_seconds, silence_seconds / 2)
        overdue_at: float | None = None
        try:
            while not reading.done():
                self._say(Message({"ping": 0}))
                await asyncio.wait([reading], timeout=ping_seconds)
                now = time.monotonic()
                if now - self._heard_at <= silence_seconds:
                    overdue_at = None
                elif overdue_at is None or self._heard_at >= overdue_at:
                    # The worker itself may have been held up: it is asked once more, and what it said is heard.
                    overdue_at = now
                elif not reading.done():
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
        try:
            await self._ended_in_time()
        finally:
            # Whoever closes may be cancelled; nothing is left then, either.
            kill_group(self._process.pid)
            await self._process.wait()

    async def _ready(self) -> None:
        try:
            message = await next_message(self._reader)
        except (OSError, EOFError, ValueError):
            message = None
        if message is None:
            status = await self._process.wait()
            raise HostEnded(
                f"the process of the policy endpoint ended {way_of_ending(status)} before it served; what it said "
                "stands in the worker's log"
            )
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
        await self._ended_in_time()
        status = self._process.returncode
        return "it closed its connection" if status is None else f"it ended {way_of_ending(status)}"

    async def _ended_in_time(self) -> None:
        """Wait until it has ended, and not for ever."""
        with suppress(TimeoutError):
            # `wait_for` would lose a cancellation that comes with the end (Python 3.11).
            async with asyncio.timeout(_end_seconds):
                await self._process.wait()

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

    async def _answer(self, number: int, opened: OpenSession | None, message: Message) -> None:
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
