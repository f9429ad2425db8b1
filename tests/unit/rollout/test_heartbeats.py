"""Heartbeats come from a thread of their own: a late loop is covered, a hanging one is not."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from support.waiting import wait_until

from producers.rollout.heartbeats import Heartbeats
from producers.rollout.sender import Outgoing, SampleSender
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicSpec

if TYPE_CHECKING:
    from rollog.kernel.broker.memory_producers import MemoryProducer

topic = "workers"


def a_broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.add_topic(TopicSpec(name=topic, num_partitions=1))
    return broker


def a_beat(value: bytes | None = b"beat") -> Outgoing:
    return Outgoing(topic=topic, partition=0, value=value, key=b"w")


def num_written(broker: MemoryBroker) -> int:
    return broker.log(topic, 0).next_offset


def values(broker: MemoryBroker) -> list[bytes | None]:
    return [record.value for record in broker.log(topic, 0).read(0, 1000)[0]]


def test_while_the_loop_is_held_up_the_newest_heartbeat_is_written_again() -> None:
    broker = a_broker()

    async def work() -> None:
        heartbeats = await Heartbeats.open(broker, "w", every_seconds=0.005)
        heartbeats.put(a_beat())
        wait_until(lambda: num_written(broker) >= 5, 20, "heartbeats from a loop that never turns")
        await heartbeats.leave(a_beat(None), 10)
        await heartbeats.close()

    asyncio.run(work())
    assert set(values(broker)[:-1]) == {b"beat"}
    assert values(broker)[-1] is None


def test_a_loop_that_hangs_is_not_covered() -> None:
    broker = a_broker()

    async def work() -> None:
        heartbeats = await Heartbeats.open(broker, "w", every_seconds=0.005, stuck_seconds=-1.0)
        looked = threading.Event()

        def write_newest() -> None:
            Heartbeats._write_newest(heartbeats)
            looked.set()

        heartbeats._write_newest = write_newest  # type: ignore[method-assign]
        heartbeats.put(a_beat())
        assert looked.wait(20)
        await heartbeats.close()

    asyncio.run(work())
    assert values(broker) == []


def test_while_the_broker_is_away_one_heartbeat_waits() -> None:
    broker = a_broker()

    async def work() -> None:
        heartbeats = await Heartbeats.open(broker, "w", every_seconds=0.005)
        heartbeats.put(a_beat(b"first"))
        wait_until(lambda: num_written(broker) >= 1, 20, "the first heartbeat")
        broker.pause()
        for number in range(100):
            heartbeats.put(a_beat(b"%d" % number))
            await asyncio.sleep(0.001)
        assert len(broker._requests.waiting) <= 1
        broker.resume()
        await heartbeats.leave(a_beat(None), 10)
        await heartbeats.close()

    asyncio.run(work())
    assert values(broker)[-1] is None


def test_news_that_came_before_the_acknowledgement_are_written_with_it() -> None:
    broker = a_broker()

    async def work() -> None:
        heartbeats = await Heartbeats.open(broker, "w", every_seconds=3600.0)
        broker.pause()
        heartbeats.put(a_beat(b"first"))
        wait_until(lambda: len(broker._requests.waiting) == 1, 20, "the first heartbeat to be on its way")
        heartbeats.put(a_beat(b"news"))
        wait_until(lambda: not heartbeats._changed.is_set(), 20, "the thread to have seen the news")
        broker.resume()
        wait_until(lambda: num_written(broker) >= 2, 20, "the news")
        await heartbeats.close()

    asyncio.run(work())
    assert values(broker) == [b"first", b"news"]


class _SlowBroker(MemoryBroker):
    """Its producers come about only when they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.told = threading.Event()
        self.made: list[MemoryProducer] = []

    def producer(self, *, client_id: str, max_in_flight_bytes: int = 64 << 20) -> MemoryProducer:
        self.asked.set()
        assert self.told.wait(20)
        self.made.append(super().producer(client_id=client_id, max_in_flight_bytes=max_in_flight_bytes))
        return self.made[-1]


def test_who_is_cancelled_while_connecting_leaves_no_producer_open() -> None:
    broker = _SlowBroker()

    async def work() -> None:
        opening = asyncio.create_task(SampleSender.open(broker, "w", max_in_flight_bytes=1))
        await asyncio.get_running_loop().run_in_executor(None, broker.asked.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(work())
    broker.told.set()
    wait_until(lambda: bool(broker.made) and broker.made[0]._is_closed, 20, "the producer to be closed")


def test_what_was_said_last_stands_before_the_tombstone() -> None:
    for _ in range(20):
        broker = a_broker()

        async def work(broker: MemoryBroker = broker) -> None:
            heartbeats = await Heartbeats.open(broker, "w", every_seconds=60.0)
            heartbeats.put(a_beat(b"leaving"))
            await heartbeats.leave(a_beat(None), 10)
            await heartbeats.close()

        asyncio.run(work())
        assert values(broker) == [b"leaving", None]


def test_a_worker_that_ends_before_its_first_heartbeat_keeps_its_own_error() -> None:
    broker = a_broker()
    may_begin = threading.Event()

    async def work() -> None:
        thread = ThreadPoolExecutor(1)
        thread.submit(may_begin.wait)
        producer = broker.producer(client_id="w")
        heartbeats = Heartbeats(producer, thread, every_seconds=0.005, stuck_seconds=10.0)
        running = asyncio.ensure_future(heartbeats.run())
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        may_begin.set()
        await heartbeats.close()

    asyncio.run(work())
    assert values(broker) == []
