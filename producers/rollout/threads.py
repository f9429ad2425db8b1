"""Opening a client of the broker on the thread that is to use it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future, ThreadPoolExecutor


class _Closable(Protocol):
    def close(self) -> None: ...


Client = TypeVar("Client", bound=_Closable)


async def opened_on(thread: ThreadPoolExecutor, connect: Callable[[], Client]) -> Client:
    """What `connect` returns, called on `thread`.

    Whoever is cancelled meanwhile leaves nothing open: a connection that comes about later is closed there at once. The
    thread ends then, and also where connecting fails.
    """
    opening = thread.submit(connect)
    try:
        return await asyncio.wrap_future(opening)
    except BaseException:
        opening.add_done_callback(_close)
        thread.shutdown(wait=False)
        raise


def _close(opening: Future[Client]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
