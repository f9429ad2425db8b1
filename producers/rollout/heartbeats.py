"""Heartbeats, by one producer on a thread of its own: a worker whose loop is busy is not taken for dead.

The loop says how it stands; this thread writes that at once, and again while the loop is late. What it repeats was
true: a task that ended since is named too long, which costs nothing, and none that was read since is missed, because
the position of the tasks is as old. A loop that says nothing for `stuck_seconds` is not late, it hangs: then the worker
falls silent, and its lease runs out.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from producers.rollout.threads import opened_on
from rollog.kernel.broker.one_at_a_time import OneAtATime
from rollog.kernel.errors import BrokerError
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from producers.rollout.sender import Outgoing
    from rollog.kernel.broker.ports import Broker, Delivery, Producer

stuck_seconds = 60.0
"""Longest silence of the loop that heartbeats cover; a prompt of 100,000 tokens or a full machine holds it for less."""

_repeats_after = 2.0
"""Intervals after which the newest heartbeat is written again."""

_retry_seconds = 0.05
"""News wait so long between two looks whether the heartbeat before them is acknowledged."""

_log = get_logger("rollout")


class Heartbeats:
    """Writes the newest heartbeat as it changes, and at the latest after two intervals.

    While the broker is away one waits and behind it only the newest, the others are left out: nothing grows.
    """

    def __init__(
        self, producer: Producer, thread: ThreadPoolExecutor, *, every_seconds: float, stuck_seconds: float
    ) -> None:
        self._producer = producer
        self._one_at_a_time = OneAtATime(producer)
        self._thread = thread
        self._repeat_seconds = _repeats_after * every_seconds
        self._stuck_seconds = stuck_seconds
        self._changed = threading.Event()
        self._newest: Outgoing | None = None
        self._written: Outgoing | None = None
        self._put_at = 0.0
        self._is_ending = False
        self._writing = thread.submit(self._write)

    @classmethod
    async def open(
        cls, broker: Broker, client_id: str, *, every_seconds: float, stuck_seconds: float = stuck_seconds
    ) -> Self:
        """Connect, and be ready to write."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="heartbeats")
        producer = await opened_on(thread, lambda: broker.producer(client_id=f"{client_id}-heartbeats"))
        return cls(producer, thread, every_seconds=every_seconds, stuck_seconds=stuck_seconds)

    def put(self, entry: Outgoing) -> None:
        """Say how the worker stands now."""
        self._newest, self._put_at = entry, time.monotonic()
        self._changed.set()

    async def run(self) -> None:
        """Wait, for ever. Raises BrokerError when a heartbeat could not be delivered."""
        await asyncio.wrap_future(self._writing)
        await asyncio.Event().wait()  # it was told to end, and so will this be

    async def leave(self, tombstone: Outgoing, timeout_seconds: float) -> None:
        """Write what was said last, then this, then nothing more; wait until it is acknowledged.

        Raises TimeoutError after that time.
        """
        await self._end_writing()
        async with asyncio.timeout(timeout_seconds):
            await asyncio.get_running_loop().run_in_executor(
                self._thread, self._write_last, tombstone, timeout_seconds
            )

    async def close(self) -> None:
        """Write nothing more, close the producer and end the thread."""
        await self._end_writing()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._producer.close)
        self._thread.shutdown()

    async def _end_writing(self) -> None:
        self._is_ending = True
        self._changed.set()
        ended = asyncio.wrap_future(self._writing)
        await asyncio.wait([ended])
        # Cancelled where `run` was before the thread came to it.
        if not ended.cancelled():
            ended.exception()  # seen here; it is `run` that raises it

    def _write(self) -> None:
        """The thread's work until the end, or a failure, which `run` raises."""
        while not self._is_ending:
            has_news = self._newest is not None and self._newest is not self._written
            self._changed.wait(
                min(_retry_seconds, self._repeat_seconds) if has_news else self._repeat_seconds
            )
            self._changed.clear()
            self._write_newest()

    def _write_newest(self) -> None:
        if self._newest is None or self._is_ending:
            return
        if time.monotonic() - self._put_at > self._stuck_seconds:
            return
        newest = self._newest
        if self._one_at_a_time.send(
            newest.topic, newest.partition, newest.value, key=newest.key, headers=newest.headers
        ):
            self._written = newest

    def _write_last(self, tombstone: Outgoing, timeout_seconds: float) -> None:
        try:
            # That the worker leaves may have been said just now.
            if self._newest is not None and self._newest is not self._written:
                self._send(self._newest)
            self._send(tombstone).offset(timeout_seconds)
        except BrokerError as error:
            _log.warning("left without a tombstone", error=error)

    def _send(self, entry: Outgoing) -> Delivery:
        return self._producer.send(
            entry.topic, entry.partition, entry.value, key=entry.key, headers=entry.headers
        )
