"""What an engine hangs on that is not in its hands: when it ends, everything that waits ends with the same reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from rollog.kernel.errors import EngineDied

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


class Lifeline:
    """Made on the loop that it is used on. The first reason to end counts, and nothing goes on afterwards."""

    def __init__(self) -> None:
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(self, reason: str) -> None:
        """Have everything under `while_it_lasts` raise EngineDied now, and all that comes."""
        if not self._death.done():
            self._death.set_result(reason)

    def check(self) -> None:
        """Raise EngineDied once it has ended."""
        if self._death.done():
            raise EngineDied(self._death.result())

    async def while_it_lasts(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of `work`. An EngineDied that it raises is the end of everything else, too."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(_look_at)
        either: list[asyncio.Future[Any]] = [task, self._death]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._death.done():
                return await task
        except EngineDied as error:
            self.end(str(error))
        finally:
            task.cancel()
        raise EngineDied(self._death.result())


def _look_at(task: asyncio.Future[Any]) -> None:
    """So that nobody misses an error of which the end is told in its place."""
    if not task.cancelled():
        task.exception()
