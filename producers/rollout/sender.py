"""What the worker writes but its heartbeats: samples and dead letters, by one producer on a thread of its own.

Bytes that the broker has not acknowledged are bounded: rollouts wait for room before they free their slot. A
task counts as open until its sample is acknowledged, so that nobody declares it lost in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from producers.rollout.threads import opened_on
from rollog.kernel.crash_points import CrashPoint, reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.ports import Broker, Delivery, Headers, Producer

Result = TypeVar("Result")

_acknowledge_seconds = 0.05
_gather_seconds = 0.02
"""Pause before sending: each hand-over to the producer's thread costs more than a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One record to send. `task_id` names the task that it ends."""

    topic: str
    partition: int
    value: bytes | None
    key: bytes | None = None
    headers: Headers = field(default=())
    task_id: str | None = None
    acknowledged: asyncio.Event | None = None
    """Set when the broker has the record."""

    @property
    def num_bytes(self) -> int:
        """Size, roughly."""
        return 200 + len(self.value or b"")


class SampleSender:
    """One producer with bounded bytes in flight."""

    def __init__(self, producer: Producer, thread: ThreadPoolExecutor, *, max_in_flight_bytes: int) -> None:
        self._producer = producer
        self._thread = thread
        self._max_bytes = max_in_flight_bytes
        self._queue: deque[Outgoing] = deque()
        self._sent: deque[tuple[Outgoing, Delivery]] = deque()
        self._sending: list[Outgoing] = []
        self._num_bytes = 0
        self._has_work = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @classmethod
    async def open(cls, broker: Broker, client_id: str, *, max_in_flight_bytes: int) -> Self:
        """Connect."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="sender")

        def connect() -> Producer:
            # Twice the bound, so that this class is the one that waits, and the producer's thread never does.
            return broker.producer(client_id=client_id, max_in_flight_bytes=2 * max_in_flight_bytes)

        return cls(await opened_on(thread, connect), thread, max_in_flight_bytes=max_in_flight_bytes)

    @property
    def unacknowledged_task_ids(self) -> list[str]:
        """Tasks whose samples are in flight."""
        entries = [*(entry for entry, _ in self._sent), *self._sending, *self._queue]
        return [entry.task_id for entry in entries if entry.task_id is not None]

    async def wait_for_room(self) -> None:
        """Return when there is room for more."""
        await self._has_room.wait()

    def add(self, entry: Outgoing) -> None:
        """Queue a record; whoever makes many waits for room between them."""
        self._queue.append(entry)
        self._num_bytes += entry.num_bytes
        self._has_work.set()
        self._is_empty.clear()
        if self._num_bytes > self._max_bytes:
            self._has_room.clear()

    async def run(self) -> None:
        """Send what is queued, for ever. Raises BrokerError when a record could not be delivered."""
        while True:
            await self._wait_for_work()
            if self._queue:
                await asyncio.sleep(_gather_seconds)
                self._sending = list(self._queue)
                self._queue.clear()
                deliveries = await self._call(self._send, self._sending)
                self._sent.extend(zip(self._sending, deliveries, strict=True))
                self._sending = []
            self._take_acknowledgements()

    async def flush(self, timeout_seconds: float) -> None:
        """Return when everything queued so far was acknowledged; TimeoutError after that time."""
        async with asyncio.timeout(timeout_seconds):
            await self._is_empty.wait()

    async def close(self) -> None:
        """Close the producer and end its thread."""
        await self._call(self._producer.close)
        self._thread.shutdown()

    async def _wait_for_work(self) -> None:
        try:
            async with asyncio.timeout(_acknowledge_seconds if self._sent else None):
                await self._has_work.wait()
        except TimeoutError:
            return
        self._has_work.clear()

    def _take_acknowledgements(self) -> None:
        while self._sent and self._sent[0][1].done():
            entry, delivery = self._sent.popleft()
            delivery.offset(0)
            if entry.acknowledged is not None:
                entry.acknowledged.set()
            if entry.task_id is not None:
                reach(CrashPoint.SAMPLE_ACKNOWLEDGED)
            self._num_bytes -= entry.num_bytes
        if self._num_bytes <= self._max_bytes:
            self._has_room.set()
        if self._num_bytes == 0:
            self._is_empty.set()

    def _send(self, entries: list[Outgoing]) -> list[Delivery]:
        send = self._producer.send
        return [
            send(entry.topic, entry.partition, entry.value, key=entry.key, headers=entry.headers)
            for entry in entries
        ]

    async def _call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
