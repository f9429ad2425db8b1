"""What the worker reads: control, weights and its tasks partition, by one consumer on a thread of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar

from producers.rollout.threads import opened_on
from rollog.kernel.broker.ports import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.ports import Broker, Consumer, Record
    from rollog.kernel.broker.topics import RunTopics

Result = TypeVar("Result")

_poll_seconds = 0.2


class LogReader:
    """One consumer. Every call runs on its thread, so that the loop is never blocked."""

    def __init__(
        self, broker: Broker, consumer: Consumer, thread: ThreadPoolExecutor, topics: RunTopics
    ) -> None:
        self._broker = broker
        self._consumer = consumer
        self._thread = thread
        self._topics = topics
        self._control = TopicPartition(topics.control, 0)
        self._weights = TopicPartition(topics.weights, 0)
        self._tasks: TopicPartition | None = None

    @classmethod
    async def open(cls, broker: Broker, topics: RunTopics, worker_id: str) -> Self:
        """Connect, and read control and weights from their first records."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="reader")
        consumer = await opened_on(thread, lambda: _open_consumer(broker, topics, worker_id))
        return cls(broker, consumer, thread, topics)

    async def poll(self) -> list[Record]:
        """Records, or none after a while."""
        return await self._call(self._consumer.poll, _poll_seconds)

    async def end_of_log(self) -> dict[TopicPartition, int]:
        """Where control and weights end now."""
        return await self._call(self._consumer.end_offsets, [self._control, self._weights])

    async def has_read(self, ends: dict[TopicPartition, int]) -> bool:
        """Whether everything committed before these offsets has been returned by `poll`."""
        return await self._call(
            lambda: all(self._consumer.position(partition) >= end for partition, end in ends.items())
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
            await self._call(self._consumer.commit, {self._tasks: offset})

    async def close(self) -> None:
        """Close the consumer and end its thread."""
        await self._call(self._consumer.close)
        self._thread.shutdown()

    def _assign(self, tasks: dict[TopicPartition, int]) -> None:
        consumer = self._consumer
        followed = (self._control, self._weights)
        consumer.assign({partition: consumer.position(partition) for partition in followed} | tasks)

    async def _call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _open_consumer(broker: Broker, topics: RunTopics, worker_id: str) -> Consumer:
    consumer = broker.consumer(client_id=worker_id, group_id=topics.worker_group)
    followed = [TopicPartition(topics.control, 0), TopicPartition(topics.weights, 0)]
    try:
        consumer.assign(consumer.beginning_offsets(followed))
    except BaseException:
        consumer.close()  # nobody else knows of it yet
        raise
    return consumer
