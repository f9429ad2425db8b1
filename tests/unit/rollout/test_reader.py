"""What a worker reads with."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest
from support.waiting import wait_until

from producers.rollout.reader import LogReader
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import BrokerTimeout


class _SilentConsumer:
    """A consumer that connects and then gets no answer."""

    def __init__(self) -> None:
        self.is_closed = False

    def beginning_offsets(self, partitions: object) -> NoReturn:
        raise BrokerTimeout(f"no answer about {partitions}")

    def assign(self, positions: object) -> NoReturn:
        raise AssertionError(f"assigned {positions}, which nobody told")

    def close(self) -> None:
        self.is_closed = True


class _SilentBroker(MemoryBroker):
    def __init__(self, consumer: _SilentConsumer) -> None:
        super().__init__()
        self._silent = consumer

    def consumer(self, **_: object) -> Any:
        return self._silent


def test_a_reader_that_cannot_begin_leaves_no_consumer_open() -> None:
    consumer = _SilentConsumer()
    with pytest.raises(BrokerTimeout):
        asyncio.run(LogReader.open(_SilentBroker(consumer), RunTopics("rollog", "run"), "worker-1"))
    wait_until(lambda: consumer.is_closed)
