"""The process that serves the policy endpoint: HTTP, JSON, rendering, parsing. The worker keeps what is recorded.

Run as `python -m producers.sessions.host CONTROL SOCKET...`: CONTROL is a stream to the worker (`wire.py`), the others
are bound sockets to listen at, which outlive this process.

    <-- {"policy": "module:function", "arguments": {...}, "parallel_calls": n, "limits": {...}, ...} once
    --> {"ready": true} once, or {"broken": text, "is_setting": bool}
    <-- {"recall": session} with a recorded call, for each that an earlier process asked
    <-- {"open": session, "key": SHA-256 of the key}         --> {"opened": session}
    <-- {"forget": [SHA-256 of keys]} of sessions that have ended
    <-- {"listen": true} once, after the sessions of an earlier process
    --> {"ask": number, "session": ...} with a question      <-- {"answer": number} with a recorded call
                                                             <-- {"failed": number, "error": ...}
    --> {"delivered": turn, "session": ...}, {"counted": [...], "session": ...}, {"refused": kind, "session": ...}
    <-- {"end": session}     --> {"ended": session}: nothing more is said of it
    <-- {"ping": n}          --> {"pong": n}

Where the worker closes CONTROL this process ends; it dies with the worker.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import ssl
import sys
import traceback
from typing import TYPE_CHECKING, Any

from producers.sessions.endpoint import PolicyEndpoint
from producers.sessions.endpoint_limits import EndpointLimits
from producers.sessions.wire import Message, call_of, error_of, next_message, packed, question_message
from rollog.kernel.errors import ConfigError, RollogError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from producers.sessions.live import Policy
    from producers.sessions.recorded_calls import Question, RecordedCall
    from producers.sessions.recording import Counted


class WorkerConnection:
    """The worker at the other end of a stream. For one asyncio loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._asked: dict[int, asyncio.Future[RecordedCall]] = {}
        self._num_asked = 0

    async def next_order(self) -> Message | None:
        """What the worker says next; None once it is gone, whatever it left half said."""
        try:
            return await next_message(self._reader)
        except (OSError, EOFError):
            return None

    def say(self, message: Message) -> None:
        """Send a message. Where the worker is gone, the end of its stream follows."""
        self._writer.write(packed(message))

    async def ask(self, session: str, question: Question) -> RecordedCall:
        """What the worker recorded for a question. Raises CallRefused, SessionFailed."""
        number, self._num_asked = self._num_asked, self._num_asked + 1
        answer: asyncio.Future[RecordedCall] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self.say(question_message(number, session, question))
            return await answer
        finally:
            del self._asked[number]

    def heed_answer(self, message: Message) -> None:
        """Give an answer to whoever still waits for it."""
        is_failed = "failed" in message.head
        answer = self._asked.get(message.head["failed" if is_failed else "answer"])
        if answer is None or answer.done():
            return
        if is_failed:
            answer.set_exception(error_of(message))
        else:
            answer.set_result(call_of(message))


class WorkersCalls:
    """`SessionCalls` of one session, by the worker."""

    def __init__(self, session: str, worker: WorkerConnection) -> None:
        self._session = session
        self._worker = worker

    async def ask(self, question: Question) -> RecordedCall:
        """As `SessionCalls.ask`."""
        return await self._worker.ask(self._session, question)

    def deliver(self, number: int) -> None:
        """The answer was written whole."""
        self._say({"delivered": number})

    def refuse(self, kind: Counted) -> None:
        """Count a request that became no question."""
        self._say({"refused": kind})

    def count(self, kinds: Sequence[Counted]) -> None:
        """Count what an answer showed of a recorded call."""
        self._say({"counted": list(kinds)})

    def _say(self, head: Mapping[str, Any]) -> None:
        self._worker.say(Message({**head, "session": self._session}))


class EndpointHost:
    """The endpoint as the worker orders it."""

    def __init__(
        self,
        worker: WorkerConnection,
        endpoint: PolicyEndpoint,
        sockets: Sequence[socket.socket],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._sockets = sockets
        self._tls = tls
        self._keys: dict[str, bytes] = {}
        self._recalled: dict[str, list[RecordedCall]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Heed orders until the worker has no more."""
        while (message := await self._worker.next_order()) is not None:
            match message.head:
                case {"answer": _} | {"failed": _}:
                    self._worker.heed_answer(message)
                case {"ping": number}:
                    self._worker.say(Message({"pong": number}))
                case {"recall": session}:
                    self._recalled.setdefault(session, []).append(call_of(message))
                case {"open": session, "key": key}:
                    await self._open(session, bytes.fromhex(key))
                case {"forget": keys}:
                    self._endpoint.forget([bytes.fromhex(key) for key in keys])
                case {"listen": _}:
                    await self._endpoint.start(*self._sockets, tls=self._tls)
                case {"end": session}:
                    ending = asyncio.create_task(self._end(session))
                    self._ending.add(ending)
                    ending.add_done_callback(self._ending.discard)

    async def _open(self, session: str, key_digest: bytes) -> None:
        self._keys[session] = key_digest
        calls = WorkersCalls(session, self._worker)
        await self._endpoint.open(key_digest, session, calls, self._recalled.pop(session, []))
        self._worker.say(Message({"opened": session}))

    async def _end(self, session: str) -> None:
        key_digest = self._keys.pop(session, None)
        if key_digest is not None:
            await self._endpoint.end(key_digest)
        self._worker.say(Message({"ended": session}))


def policy_of(reference: str, arguments: Mapping[str, Any]) -> Policy:
    """The policy that `module:function` makes of JSON arguments. Raises what the function does."""
    module, _, function = reference.partition(":")
    policy: Policy = getattr(importlib.import_module(module), function)(**arguments)
    return policy


def tls_of(certfile: str | None, keyfile: str | None) -> ssl.SSLContext | None:
    """TLS with a certificate, where there is one. Raises ConfigError."""
    if certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certfile, keyfile, password=_no_passphrase)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"agent.ssl_certfile = {certfile!r} with agent.ssl_keyfile = {keyfile!r} cannot be used: {error}; "
            "give PEM files that belong together, the key without a passphrase"
        ) from error
    return context


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


async def serve(control: socket.socket, sockets: Sequence[socket.socket]) -> None:
    """Serve until the worker closes its end."""
    worker = WorkerConnection(*await asyncio.open_connection(sock=control))
    order = await worker.next_order()
    if order is None:
        return
    head = order.head
    try:
        tls = tls_of(head["certfile"], head["keyfile"])
        policy = policy_of(head["policy"], head["arguments"])
    except (RollogError, OSError) as error:
        worker.say(Message({"broken": str(error), "is_setting": isinstance(error, ConfigError)}))
        return
    endpoint = PolicyEndpoint(
        policy,
        parallel_calls=head["parallel_calls"],
        limits=EndpointLimits(**head["limits"]),
        host=head["host"],
    )
    worker.say(Message({"ready": True}))
    await EndpointHost(worker, endpoint, sockets, tls).serve()


def main() -> None:
    """Serve, and end without waiting for a thread that renders."""
    control, *sockets = (socket.socket(fileno=int(word)) for word in sys.argv[1:])
    try:
        asyncio.run(serve(control, sockets))
    except ConnectionError:
        os._exit(0)  # the worker is gone
    except BaseException:  # noqa: BLE001  # told here, because nothing comes after it
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
