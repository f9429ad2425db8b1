"""The policy endpoint: an HTTP server that speaks the OpenAI protocol to one session for each key.

Consumes requests; produces answers, each recorded before a byte of it is sent, behind `SessionCalls`. It keeps nothing
that is not known elsewhere: after a crash of its process another one opens the same sessions under the same keys.

    POST [/s/KEY]/v1/chat/completions     POST [/s/KEY]/v1/completions     GET [/s/KEY]/v1/models

The key stands in the path or in `Authorization: Bearer`. An answer counts as delivered when its last byte was written
to a client that was still there.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections import OrderedDict
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from producers.sessions.endpoint_limits import (
    EndpointLimits,
    RequestsUnderWay,
    SilentConnections,
    TurnedAway,
    backlog,
    in_address,
    most_ended,
)
from producers.sessions.errors import BadRequest, CallRefused, SessionClosed, SessionFailed
from producers.sessions.live import LiveSession
from producers.sessions.quiet_errors import quiet_logger
from producers.sessions.rendering_thread import RenderingThread
from producers.sessions.requests import body_of, chat_request, text_request
from producers.sessions.responses import error_body, error_body_of, error_event, status_of
from rollog.kernel.errors import RollogError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from producers.sessions.live import Policy
    from producers.sessions.recorded_calls import RecordedCall, SessionCalls
    from producers.sessions.requests import Body, Request
    from producers.sessions.responses import Answer

_end_seconds = 2.0
"""What is written to a client when its session ends is waited for this long."""

_loopback_hosts = frozenset({"localhost", "127.0.0.1", "[::1]"})


class PolicyEndpoint:
    """Serves the sessions that are opened with it, between `start` and `close`."""

    def __init__(
        self,
        policy: Policy,
        *,
        parallel_calls: int,
        limits: EndpointLimits | None = None,
        host: str = "localhost",
    ) -> None:
        """Of each session twice as many requests as `parallel_calls` are served at once: some join the call of another.

        `host` is the name under which it is reached; requests that name another are refused.
        """
        self._hosts = _loopback_hosts | {in_address(host).lower()}
        self._policy = policy
        self._limits = limits or EndpointLimits()
        self._sessions: dict[bytes, LiveSession] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._requests = RequestsUnderWay(2 * parallel_calls)
        self._thread = RenderingThread()
        self._silent = SilentConnections(self._limits.silent_seconds)
        self._num_arriving = 0
        self._runner: web.AppRunner | None = None
        self._servers: list[asyncio.Server] = []

    @property
    def num_connections(self) -> int:
        """Connections whose clients are still there."""
        assert self._runner is not None
        assert self._runner.server is not None
        return sum(each.transport is not None for each in self._runner.server.connections)

    async def start(self, *sockets: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve whoever connects to these sockets, of TCP (with `tls`, over that) or unix."""
        app = web.Application(client_max_size=self._limits.request_bytes)
        for prefix in ("", "/s/{key}"):
            app.router.add_post(f"{prefix}/v1/chat/completions", self._guarded(self._chat))
            app.router.add_post(f"{prefix}/v1/completions", self._guarded(self._text))
            app.router.add_get(f"{prefix}/v1/models", self._guarded(self._models))
        # Paths and headers hold keys: there is no access log, and of an error its kind and place alone are told.
        self._runner = web.AppRunner(app, access_log=None, logger=quiet_logger(), shutdown_timeout=1.0)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        for each in sockets:
            over = None if each.family == socket.AF_UNIX else tls
            server = await loop.create_server(
                partial(self._connection, is_tls=over is not None),
                sock=each,
                ssl=over,
                ssl_handshake_timeout=None if over is None else self._limits.handshake_seconds,
                backlog=backlog,
            )
            self._servers.append(server)

    async def close(self) -> None:
        """Stop listening, and drop every session. Idempotent."""
        self._sessions.clear()
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._thread.close()

    async def open(
        self, key_digest: bytes, name: str, calls: SessionCalls, history: Sequence[RecordedCall] = ()
    ) -> None:
        """Serve a session under the key of that digest (`digest_of`); `history` was recorded by a process before."""
        session = LiveSession(name, calls, self._policy, self._thread)
        await session.recall(history)
        self._sessions[key_digest] = session

    async def end(self, key_digest: bytes) -> None:
        """Take no further request of a session, and wait for those whose calls have ended. Idempotent.

        Then it is told of every answer whether it was delivered.
        """
        session = self._sessions.pop(key_digest, None)
        if session is None:
            return
        self.forget([key_digest])
        if session.under_way:
            await asyncio.wait(session.under_way, timeout=_end_seconds)

    def forget(self, key_digests: Sequence[bytes]) -> None:
        """Tell whoever comes with one of these keys that its session has ended."""
        self._ended |= dict.fromkeys(key_digests)
        while len(self._ended) > most_ended:
            self._ended.popitem(last=False)

    def _connection(self, *, is_tls: bool) -> asyncio.Protocol:
        """Who serves a connection that begins now."""
        if self._runner is None or self._runner.server is None:
            return TurnedAway()
        if self.num_connections + self._num_arriving >= self._limits.connections:
            return TurnedAway()
        connection = self._runner.server()
        self._arriving(is_tls=is_tls)
        self._silent.expect(connection)
        return connection

    def _arriving(self, *, is_tls: bool) -> None:
        """Count a connection until it is among those of the server: many are accepted at once."""
        loop = asyncio.get_running_loop()
        self._num_arriving += 1
        if is_tls:
            # It is not before its handshake, whose end is not told.
            loop.call_later(self._limits.handshake_seconds, self._arrived)
            return
        # Its own first callback is put into the loop after this one, and before what this one puts there.
        loop.call_soon(loop.call_soon, self._arrived)

    def _arrived(self) -> None:
        self._num_arriving -= 1

    def _guarded(
        self, handler: Callable[[web.Request, LiveSession], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """A route that knows its session, and answers what is refused as clients read it."""

        async def handle(request: web.Request) -> web.StreamResponse:
            if _host(request) not in self._hosts:
                return _error(400, error_body("the Host header names another machine", "invalid_host"))
            digest = digest_of(_key(request))
            session = self._sessions.get(digest)
            if session is None and digest in self._ended:
                return _refusal(SessionClosed("the session has ended and takes no further call"))
            if session is None:
                return _error(401, error_body("the key opens no session", "invalid_api_key"))
            try:
                with self._requests.one(session.name), _under_way(session):
                    return await handler(request, session)
            except (CallRefused, SessionFailed) as error:
                return _refusal(error)

        async def heard(request: web.Request) -> web.StreamResponse:
            with self._silent.heard(request.protocol):
                return await handle(request)

        return heard

    async def _chat(self, request: web.Request, session: LiveSession) -> web.StreamResponse:
        return await self._served(request, session, chat_request)

    async def _text(self, request: web.Request, session: LiveSession) -> web.StreamResponse:
        return await self._served(
            request, session, lambda body: text_request(body, self._policy.vocabulary_size)
        )

    async def _models(self, request: web.Request, session: LiveSession) -> web.StreamResponse:
        del request, session
        model = {"id": self._policy.model, "object": "model", "created": 0, "owned_by": "rollog"}
        # The context under the name that vLLM's server gives it.
        shown = {**model, "max_model_len": self._policy.context_tokens}
        return web.json_response({"object": "list", "data": [shown]})

    async def _read(self, request: web.Request) -> bytes:
        """A request's body. Raises BadRequest where it does not come in time, HTTP's error 413 for a large one."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.read_seconds):
                # `request.read` would keep it for as long as the answer takes.
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > self._limits.request_bytes:
                        raise web.HTTPRequestEntityTooLarge(self._limits.request_bytes, len(body))
        except TimeoutError as error:
            raise BadRequest(
                f"the request's body did not arrive within {self._limits.read_seconds:g} seconds"
            ) from error
        return bytes(body)

    async def _served(
        self, request: web.Request, session: LiveSession, read: Callable[[Body], Request]
    ) -> web.StreamResponse:
        answering, has_usage = await self._asked(request, session, read)
        if has_usage is not None:
            return await self._stream(request, session, answering, has_usage=has_usage)
        answer = await answering
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        body = answer.body()
        response.content_length = len(body)
        if await self._write_whole(request, response, [body]):
            session.deliver(answer)
        return response

    async def _asked(
        self, request: web.Request, session: LiveSession, read: Callable[[Body], Request]
    ) -> tuple[asyncio.Task[Answer], bool | None]:
        """The call, and of a stream whether it tells its usage; nothing of the body is held while the call runs."""
        data = await self._read(request)
        try:
            asked_for = read(body_of(data))
        except BadRequest:
            session.refuse()
            raise
        answering = asyncio.create_task(session.answer(asked_for, is_retry=_is_retry(request)))
        return answering, asked_for.has_usage if asked_for.is_stream else None

    async def _stream(
        self, request: web.Request, session: LiveSession, answering: asyncio.Task[Answer], *, has_usage: bool
    ) -> web.StreamResponse:
        """Keep-alives until the answer is recorded, then the answer in pieces."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        # A first keep-alive is due only where the call takes long, so that a quick refusal has its own status.
        while not (await asyncio.wait([answering], timeout=self._limits.keep_alive_seconds))[0]:
            if not await self._write(request, response, [b": keep-alive\n\n"]):
                answering.cancel()
                return response
        try:
            answer = answering.result()
        except RollogError as error:
            if not response.prepared:
                raise
            await self._write_whole(request, response, [error_event(error)])
            return response
        if await self._write_whole(request, response, answer.events(has_usage=has_usage)):
            session.deliver(answer)
        return response

    async def _write_whole(
        self, request: web.Request, response: web.StreamResponse, pieces: Iterable[bytes]
    ) -> bool:
        """Whether all pieces and the end were written to a client that was still there."""
        if not await self._write(request, response, pieces):
            return False
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._limits.write_seconds):
                await response.write_eof()
            return _is_there(request)
        return False

    async def _write(
        self, request: web.Request, response: web.StreamResponse, pieces: Iterable[bytes]
    ) -> bool:
        """Whether the pieces were taken. A client that reads too slowly is cut off."""
        try:
            for piece in pieces:
                if not _is_there(request):
                    return False
                async with asyncio.timeout(self._limits.write_seconds):
                    if not response.prepared:
                        await response.prepare(request)
                    await response.write(piece)
        except OSError:
            # A time-out is one too. What was begun cannot be mended.
            if request.transport is not None:
                request.transport.abort()
            return False
        return True


@contextmanager
def _under_way(session: LiveSession) -> Iterator[None]:
    """Have this request among those that the session serves now."""
    task = asyncio.current_task()
    assert task is not None
    session.under_way.add(task)
    try:
        yield
    finally:
        session.under_way.discard(task)


def _is_there(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()


def _is_retry(request: web.Request) -> bool:
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isdecimal() and int(count[:9]) > 0


def _host(request: web.Request) -> str:
    host = request.headers.get("Host", "")
    return (host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host).lower()


def _key(request: web.Request) -> str:
    if "key" in request.match_info:
        return request.match_info["key"]
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""


def digest_of(key: str) -> bytes:
    """What a key is looked up by: how long that takes tells nothing of the key."""
    return hashlib.sha256(key.encode(errors="replace")).digest()


def _refusal(error: RollogError) -> web.Response:
    status = status_of(error)
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    return _error(status, error_body_of(error), headers)


def _error(status: int, body: bytes, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
