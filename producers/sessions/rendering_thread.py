"""One thread for what takes long, on which sessions take turns: tokenizers and templates are not made for several."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

Value = TypeVar("Value")


class RenderingThread:
    """Runs work of sessions, one piece of each after another. Its methods are called on one event loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "rendering")
        self._is_taken = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, session: str, work: Callable[[], Value]) -> Value:
        """The result of work, when it is the session's turn."""
        async with self._turn(session):
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Begin nothing more. What runs is not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def _turn(self, session: str) -> AsyncIterator[None]:
        if self._is_taken:
            await self._wait(session)
        self._is_taken = True
        try:
            yield
        finally:
            self._hand_on()

    async def _wait(self, session: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # It may have come in the same turn of the loop in which the wait was cancelled.
            if turn.done() and not turn.cancelled():
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        """Give the turn to the session that waits for longest since its last one."""
        while self._waiting:
            session, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[session] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False
