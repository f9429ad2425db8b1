"""What the worker reads: control, weights and its tasks partition, by one consumer on a thread of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from rollog.kernel.broker.ports import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.ports import Broker, Consumer, Record
    from rollog.kernel.broker.topics import RunTopics

Result = TypeVar("Result")

_poll_seconds = 0.2


class Intake:
    """One consumer. Every call runs on its thread, so that the loop is never blocked."""

    def __init__(self, broker: Broker, topics: RunTopics, worker_id: str) -> None:
        self._broker = broker
        self._topics = topics
        self._worker_id = worker_id
        self._control = TopicPartition(topics.control, 0)
        self._weights = TopicPartition(topics.weights, 0)
        self._tasks: TopicPartition | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="intake")
        self._consumer: Consumer | None = None

    async def open(self) -> None:
        """Connect, and begin control and weights from their first records."""
        await self._call(self._open)

    async def poll(self) -> list[Record]:
        """Records, or none after a while."""
        return await self._call(self._require().poll, _poll_seconds)

    async def end_of_log(self) -> dict[TopicPartition, int]:
        """Where control and weights end now."""
        return await self._call(self._require().end_offsets, [self._control, self._weights])

    async def has_read(self, ends: dict[TopicPartition, int]) -> bool:
        """Whether everything committed before these offsets has been returned by `poll`."""
        return await self._call(
            lambda: all(self._require().position(place) >= end for place, end in ends.items())
        )

    async def read_tasks(self, partition: int, start_offset: int) -> None:
        """Read this tasks partition from this offset on, and no other."""
        self._tasks = TopicPartition(self._topics.tasks, partition)
        await self._call(self._assign, {self._tasks: start_offset})

    async def stop_reading_tasks(self) -> None:
        """Read no tasks partition."""
        self._tasks = None
        await self._call(self._assign, {})

    async def commit(self, offset: int) -> None:
        """Show ordinary tools how far the tasks have been read; nothing depends on it."""
        if self._tasks is not None:
            await self._call(self._require().commit, {self._tasks: offset})

    async def close(self) -> None:
        """Leave."""
        if self._consumer is not None:
            await self._call(self._consumer.close)
        self._thread.shutdown()

    def _open(self) -> None:
        self._consumer = self._broker.consumer(client_id=self._worker_id, group_id=self._topics.worker_group)
        self._consumer.assign(self._consumer.beginning_offsets([self._control, self._weights]))

    def _assign(self, tasks: dict[TopicPartition, int]) -> None:
        consumer = self._require()
        consumer.assign({place: consumer.position(place) for place in (self._control, self._weights)} | tasks)

    def _require(self) -> Consumer:
        assert self._consumer is not None
        return self._consumer

    async def _call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
