"""An event loop on a thread of its own, for an environment whose methods are `async def`.

It goes on between calls, so that what an environment has running (a connection that answers pings, say) stays alive
while the agent thinks. Runs in the environment's process, so only the standard library is imported here.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable


class BackgroundLoop:
    """Runs awaitables one at a time, and whatever tasks they leave. Once interrupted, only `last_result_of` runs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[Any] | None = None
        self._is_interrupted = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="episode loop", daemon=True)
        self._thread.start()

    def result_of(self, value: Awaitable[Any]) -> Any:
        """What it gives, or raises what it raises; CancelledError where it was interrupted."""
        return asyncio.run_coroutine_threadsafe(self._awaited(value), self._loop).result()

    def last_result_of(self, value: Awaitable[Any]) -> Any:
        """The same for what closes the environment, which no interruption reaches."""
        return asyncio.run_coroutine_threadsafe(_awaited(value), self._loop).result()

    def interrupt(self) -> None:
        """Cancel what is awaited now, and what `result_of` gets from now on. From any thread; not waited for."""
        self._loop.call_soon_threadsafe(self._cancel)

    def close(self) -> None:
        """Cancel the tasks that are left and end the thread."""
        self.last_result_of(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _awaited(self, value: Awaitable[Any]) -> Any:
        self._task = asyncio.current_task()
        try:
            # Waited for at once, so that a coroutine that is not to begin is closed and not left over.
            if self._is_interrupted and self._task is not None:
                self._task.cancel()
            return await value
        finally:
            self._task = None

    def _cancel(self) -> None:
        self._is_interrupted = True
        if self._task is not None:
            self._task.cancel()


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
