"""What one endpoint takes at once, so that no session's requests use up what the worker and the others need."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from producers.sessions.errors import CallsInFlight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp import web

_most_connections = 4096
most_ended = 4096
"""Ended sessions whose keys are still told apart from wrong ones."""
backlog = 512
"""Connections that wait to be accepted, while there is no process too."""


def _half_of_descriptors() -> int:
    """So that connections leave the process descriptors for everything else that it does."""
    return min(_most_connections, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLimits:
    """Most bytes of a request, and seconds.

    They are those to read one, to write a piece of an answer, between keep-alives, and for the handshake of TLS.
    `connections` is over all sessions; one beyond it is closed at once, as is one that has no request under way for
    `silent_seconds`.
    """

    request_bytes: int = 8 << 20
    connections: int = field(default_factory=_half_of_descriptors)
    read_seconds: float = 30.0
    write_seconds: float = 30.0
    keep_alive_seconds: float = 15.0
    silent_seconds: float = 75.0
    handshake_seconds: float = 10.0


def in_address(host: str) -> str:
    """A host as it stands in an address."""
    return f"[{host}]" if ":" in host else host


class RequestsUnderWay:
    """Requests from their first byte to the last of their answers, at most so many of each session."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count: Counter[str] = Counter()

    @contextmanager
    def one(self, session: str) -> Iterator[None]:
        """Serve one. Raises CallsInFlight where as many are under way."""
        if self._count[session] >= self._most:
            raise CallsInFlight(
                f"{self._most} requests of this session are under way; ask again when one has its answer"
            )
        self._count[session] += 1
        try:
            yield
        finally:
            self._count[session] -= 1
            if not self._count[session]:
                del self._count[session]


class SilentConnections:
    """Closes connections on which no request comes: no header, or a header without an end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timers: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def expect(self, connection: web.RequestHandler) -> None:
        """Close it unless it is heard in time."""
        loop = asyncio.get_running_loop()
        self._timers[connection] = loop.call_later(self._seconds, self._close, connection)

    @contextmanager
    def heard(self, connection: web.RequestHandler) -> Iterator[None]:
        """A request is served meanwhile; the next one is expected afterwards."""
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        try:
            yield
        finally:
            self.expect(connection)

    def _close(self, connection: web.RequestHandler) -> None:
        del self._timers[connection]
        if connection.transport is not None:
            connection.transport.abort()


class TurnedAway(asyncio.Protocol):
    """A connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it at once."""
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
