"""Places of calls in the engine, fair by session: a free one goes to whoever waits and holds the fewest.

Example with 2 places. A asks three times, B once. A holds both places and waits with its third call, B waits behind it.
One of A's calls ends: B holds none and A one, so B gets the place, though it asked later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class CallPlaces:
    """A number of places. All methods are called on one event loop."""

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._held: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def place(self, session: str) -> AsyncIterator[None]:
        """Hold a place, as soon as there is one."""
        await self._take(session)
        try:
            yield
        finally:
            self._give(session)

    async def _take(self, session: str) -> None:
        if self._num_free:
            self._num_free -= 1
            self._held[session] += 1
            return
        waiting = (session, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            await waiting[1]
        except asyncio.CancelledError:
            # It may have been given in the same turn of the loop in which the wait was cancelled.
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                self._give(session)
            raise

    def _give(self, session: str) -> None:
        self._held[session] -= 1
        if not self._held[session]:
            del self._held[session]
        if not self._waiting:
            self._num_free += 1
            return
        # Of those that hold as few the first that asked: `min` takes the first of equals.
        next_one = min(self._waiting, key=lambda each: self._held[each[0]])
        self._waiting.remove(next_one)
        self._held[next_one[0]] += 1
        if not next_one[1].done():
            next_one[1].set_result(None)
