"""A policy endpoint on the test's own loop: the fake of `EndpointProcess`, which passes the same tests."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

from producers.sessions.endpoint import PolicyEndpoint
from producers.sessions.listening import Listening
from producers.sessions.recorded_calls import RecordedCalls

if TYPE_CHECKING:
    from producers.sessions.endpoint_limits import EndpointLimits
    from producers.sessions.live import Policy
    from producers.sessions.recorder import Session
    from producers.sessions.serving import ServedSession


class LocalEndpoint:
    """Serves sessions between `start` and `close`."""

    def __init__(
        self, policy: Policy, *, parallel_calls: int = 16, limits: EndpointLimits | None = None
    ) -> None:
        self.http = PolicyEndpoint(policy, parallel_calls=parallel_calls, limits=limits)
        self._parallel_calls = parallel_calls
        self._sessions: dict[str, tuple[bytes, RecordedCalls]] = {}
        self.address = ""
        self.socket_path = None

    async def start(self) -> None:
        bound = Listening().bound()
        self.address = Listening().address_of(bound)
        await self.http.start(bound)

    async def open(self, name: str, session: Session, served: ServedSession) -> str:
        key = secrets.token_hex(32)
        calls = RecordedCalls(
            name,
            session,
            served.generate,
            parallel_calls=self._parallel_calls,
            on_change=served.changed,
        )
        digest = hashlib.sha256(key.encode()).digest()
        self._sessions[name] = digest, calls
        await self.http.open(digest, name, calls)
        return key

    async def end(self, name: str) -> None:
        found = self._sessions.get(name)
        if found is None:
            return
        digest, calls = found
        await calls.cancel()
        await self.http.end(digest)
        calls.close()

    async def close(self) -> None:
        for name in self._sessions:
            await self.end(name)
        await self.http.close()
