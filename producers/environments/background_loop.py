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
    """Runs awaitables one at a time, and whatever tasks they leave."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="episode loop", daemon=True)
        self._thread.start()

    def result_of(self, value: Awaitable[Any]) -> Any:
        """What it gives, or raises what it raises."""
        return asyncio.run_coroutine_threadsafe(_awaited(value), self._loop).result()

    def close(self) -> None:
        """Cancel the tasks that are left and end the thread."""
        self.result_of(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
