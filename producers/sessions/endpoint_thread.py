"""The policy endpoint on a thread with a loop of its own, for a worker whose own loop must not wait for it.

HTTP, JSON, rendering and parsing happen there, and the sessions' records are kept there. Two things happen on the
worker's loop, and are waited for here: tokens are generated, and a turn that was recorded is made known.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from producers.sessions.endpoint import PolicyEndpoint
from producers.sessions.errors import SessionClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from producers.engines.ports import Generation
    from producers.sessions.endpoint_limits import EndpointLimits
    from producers.sessions.live import Policy
    from producers.sessions.recorder import Session

Value = TypeVar("Value")


class ServedSession(Protocol):
    """What a session needs of its worker. The first is called on the worker's loop, the last on any thread."""

    async def generate(self, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """As `PolicyCalls.generate`."""
        ...

    def changed(self, num_calls: int) -> None:
        """A call began, ended or was refused; so many are under way."""
        ...


class WorkerCalls:
    """`PolicyCalls` of all sessions, handed over to the loop of the worker."""

    def __init__(self, worker_loop: asyncio.AbstractEventLoop) -> None:
        self._worker_loop = worker_loop
        self.sessions: dict[str, ServedSession] = {}

    async def generate(
        self, session: str, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]
    ) -> Generation:
        """Tokens for a session. Raises what its worker raises, SessionClosed where it has ended."""
        return await self._there(self._served(session).generate(input_ids, max_tokens, stop))

    def _served(self, session: str) -> ServedSession:
        served = self.sessions.get(session)
        if served is None:
            raise SessionClosed("the session has ended and takes no further call")
        return served

    async def _there(self, work: Coroutine[Any, Any, Value]) -> Value:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._worker_loop))


class EndpointThread:
    """Serves sessions between `start` and `close`, which are called on the worker's loop, as the others are."""

    def __init__(
        self,
        policy_of: Callable[[WorkerCalls], Policy],
        *,
        vocabulary_size: int,
        limits: EndpointLimits | None = None,
        has_socket: bool = False,
    ) -> None:
        """With `has_socket` it listens at a unix socket, too, for sandboxes; whoever has a key may connect there."""
        self._policy_of = policy_of
        self._vocabulary_size = vocabulary_size
        self._limits = limits
        self._directory = Path(tempfile.gettempdir()) / f"rollog-endpoint-{secrets.token_hex(8)}"
        self._has_socket = has_socket
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._calls: WorkerCalls | None = None
        self._endpoint: PolicyEndpoint | None = None
        self.address = ""
        """What `/v1` is added to."""

    @property
    def socket_path(self) -> Path | None:
        """Where it listens besides loopback, between `start` and `close`."""
        return self._directory / "policy.sock" if self._has_socket else None

    async def start(self) -> None:
        """Listen. Raises OSError."""
        started: Future[None] = Future()
        self._calls = WorkerCalls(asyncio.get_running_loop())
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="policy endpoint", daemon=True
        )
        self._thread.start()
        await asyncio.wrap_future(started)

    async def open(self, name: str, session: Session, served: ServedSession) -> str:
        """Serve a session, and return its key."""
        assert self._calls is not None
        self._calls.sessions[name] = served
        return await self._here(self._opened(name, session, served))

    async def end(self, name: str, key: str) -> None:
        """End a session: calls that are under way are cancelled, and its record changes no more. Idempotent."""
        assert self._endpoint is not None
        assert self._calls is not None
        await self._here(self._endpoint.end(key))
        self._calls.sessions.pop(name, None)

    async def close(self) -> None:
        """End every session and the thread. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._ending is None:
            return
        self._loop.call_soon_threadsafe(self._ending.set)
        # On another thread, because the endpoint's calls end on this loop.
        await asyncio.to_thread(thread.join)

    async def _serve(self, started: Future[None]) -> None:
        assert self._calls is not None
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        endpoint = PolicyEndpoint(
            self._policy_of(self._calls), vocabulary_size=self._vocabulary_size, limits=self._limits
        )
        try:
            self.address = await endpoint.start()
            if self.socket_path is not None:
                # A sandbox connects as a user of its own, so everybody can reach the socket and nobody list it.
                self._directory.mkdir(mode=0o711)
                await endpoint.listen_at(self.socket_path)
                self.socket_path.chmod(0o666)
        except BaseException as error:  # noqa: BLE001  # raised where it is waited for
            await self._close(endpoint)
            started.set_exception(error)
            return
        self._endpoint = endpoint
        started.set_result(None)
        try:
            await self._ending.wait()
        finally:
            await self._close(endpoint)

    async def _close(self, endpoint: PolicyEndpoint) -> None:
        await endpoint.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _opened(self, name: str, session: Session, served: ServedSession) -> str:
        assert self._endpoint is not None
        return self._endpoint.open(name, session, served.changed)

    async def _here(self, work: Coroutine[Any, Any, Value]) -> Value:
        """The result of work on the endpoint's loop."""
        assert self._loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
