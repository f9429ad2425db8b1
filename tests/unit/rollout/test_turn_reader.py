"""One pass over `turns` serves all rollouts that wait for it, on either broker, whatever strangers wrote there."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from support.broker_topics import a_topic
from support.written_turns import a_turn, headers_like, taking_over, write

from producers.rollout.turn_reader import TurnBounds, TurnReader
from rollog.kernel.errors import BrokerError, TopicMismatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from producers.sessions.turn_chain import Chain
    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.ports import Broker, Consumer

pytestmark = pytest.mark.timeout(180)

num_partitions = 3


@dataclass
class Held:
    """A broker that connects only when it may, so that the first pass stays under way."""

    broker: Broker
    has_begun: threading.Event
    may_go_on: threading.Event

    def consumer(self, **names: Any) -> Consumer:
        self.has_begun.set()
        assert self.may_go_on.wait(60)
        return self.broker.consumer(**names)


@asynccontextmanager
async def reading(broker: Any, topic: str, **bounds: int) -> AsyncIterator[TurnReader]:
    reader = TurnReader(broker, topic, "reader", TurnBounds(**bounds))
    try:
        yield reader
    finally:
        await reader.close()


def numbers(chain: Chain | None) -> list[int]:
    """Of the turns that are taken over, as each says it of itself."""
    return [] if chain is None else [int(taken.turn.token_ids[0]) for taken in chain.turns]


def groups(chain: Chain | None) -> set[int]:
    return set() if chain is None else {taken.turn.group_id for taken in chain.turns}


def test_all_that_wait_are_served_by_one_pass(broker: Broker) -> None:
    topic = a_topic(broker, num_partitions=num_partitions)
    with broker.producer(client_id="worker") as producer:
        for number in range(4):
            for group in range(64):
                write(producer, topic, a_turn(group, number), group % num_partitions)
        producer.flush(30)

    async def take_over() -> None:
        async with reading(broker, topic) as reader:
            tasks = [taking_over(group, partition=group % num_partitions) for group in range(64)]
            chains = await asyncio.gather(*map(reader.chain_of, tasks))
            assert [groups(chain) for chain in chains] == [{group} for group in range(64)]
            assert all(numbers(chain) == [0, 1, 2, 3] for chain in chains)
            assert reader.num_passes == 1

    asyncio.run(take_over())


def test_a_rollout_that_takes_nothing_over_reads_nothing(memory_broker: Broker) -> None:
    async def ask() -> None:
        async with reading(memory_broker, "no-such-topic") as reader:
            assert await reader.chain_of(replace(taking_over(1), resume_attempt=None)) is None
            assert reader.num_passes == 0

    asyncio.run(ask())


def test_whoever_asks_during_a_pass_gets_what_was_written_before_it_asked(broker: Broker) -> None:
    topic = a_topic(broker)
    held = Held(broker, threading.Event(), threading.Event())

    async def take_over() -> None:
        with broker.producer(client_id="worker") as producer:
            write(producer, topic, a_turn(1, 0))
            producer.flush(30)
            async with reading(held, topic) as reader:
                first = asyncio.create_task(reader.chain_of(taking_over(1)))
                assert await asyncio.to_thread(held.has_begun.wait, 60)
                write(producer, topic, a_turn(2, 0))
                write(producer, topic, a_turn(3, 0))
                producer.flush(30)
                others = [asyncio.create_task(reader.chain_of(taking_over(group))) for group in (2, 3)]
                held.may_go_on.set()
                assert groups(await first) == {1}
                assert [groups(await other) for other in others] == [{2}, {3}]
                assert reader.num_passes == 2

    asyncio.run(take_over())


def test_a_rollout_that_is_cancelled_leaves_the_pass_to_the_others(broker: Broker) -> None:
    topic = a_topic(broker)
    held = Held(broker, threading.Event(), threading.Event())

    async def take_over() -> None:
        with broker.producer(client_id="worker") as producer:
            for group in (1, 2):
                write(producer, topic, a_turn(group, 0))
            producer.flush(30)
        async with reading(held, topic) as reader:
            first, other = (asyncio.create_task(reader.chain_of(taking_over(group))) for group in (1, 2))
            assert await asyncio.to_thread(held.has_begun.wait, 60)
            first.cancel()
            with suppress(asyncio.CancelledError):
                await first
            held.may_go_on.set()
            assert groups(await other) == {2}
            assert reader.num_passes == 1

    asyncio.run(take_over())


def test_rollouts_that_are_cancelled_before_their_pass_begins_cost_the_others_nothing(broker: Broker) -> None:
    topic = a_topic(broker)
    held = Held(broker, threading.Event(), threading.Event())
    with broker.producer(client_id="worker") as producer:
        for group in (1, 2):
            write(producer, topic, a_turn(group, 0))
        producer.flush(30)

    async def take_over() -> None:
        async with reading(held, topic) as reader:
            asked = [asyncio.create_task(reader.chain_of(taking_over(group))) for group in (1, 2)]
            # They have asked, and the pass is a task that has not begun.
            await asyncio.sleep(0)
            asked[0].cancel()
            assert await asyncio.to_thread(held.has_begun.wait, 60)
            waiting = asyncio.create_task(reader.chain_of(taking_over(1)))
            await asyncio.sleep(0)
            waiting.cancel()
            held.may_go_on.set()
            ends = await asyncio.gather(*asked, waiting, return_exceptions=True)
            assert [type(end) for end in (ends[0], ends[2])] == [asyncio.CancelledError] * 2
            assert groups(await asked[1]) == {2}
            assert reader.num_passes == 1
            assert groups(await reader.chain_of(taking_over(1))) == {1}
            assert reader.num_passes == 2

    asyncio.run(take_over())


def test_a_reader_that_is_closed_during_a_pass_answers_it_and_takes_no_other(broker: Broker) -> None:
    topic = a_topic(broker)
    held = Held(broker, threading.Event(), threading.Event())
    with broker.producer(client_id="worker") as producer:
        for group in (1, 2):
            write(producer, topic, a_turn(group, 0))
        producer.flush(30)

    async def take_over() -> None:
        async with reading(held, topic) as reader:
            first = asyncio.create_task(reader.chain_of(taking_over(1)))
            assert await asyncio.to_thread(held.has_begun.wait, 60)
            late = asyncio.create_task(reader.chain_of(taking_over(2)))
            await asyncio.sleep(0)
            closing = asyncio.create_task(reader.close())
            await asyncio.sleep(0)
            assert not closing.done()
            held.may_go_on.set()
            await closing
            assert groups(await first) == {1}
            with pytest.raises(BrokerError, match=r"task 2\.2: .* worker leaves"):
                await late
            with pytest.raises(BrokerError, match="worker leaves"):
                await reader.chain_of(taking_over(1))
            assert await reader.chain_of(replace(taking_over(1), resume_attempt=None)) is None
            assert reader.num_passes == 1

    asyncio.run(take_over())


def test_a_pass_whose_every_rollout_is_cancelled_ends_before_the_reader_is_closed(broker: Broker) -> None:
    topic = a_topic(broker)
    held = Held(broker, threading.Event(), threading.Event())

    async def leave() -> None:
        async with reading(held, topic) as reader:
            asked = asyncio.create_task(reader.chain_of(taking_over(1)))
            assert await asyncio.to_thread(held.has_begun.wait, 60)
            asked.cancel()
            closing = asyncio.create_task(reader.close())
            with suppress(asyncio.CancelledError):
                await asked
            assert not closing.done()
            held.may_go_on.set()
            await closing
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("turns")]

    asyncio.run(leave())


def test_a_reader_holds_no_consumer_between_passes(memory_broker: MemoryBroker) -> None:
    """What a consumer has fetched beyond the end of a pass would stay in memory with it."""
    topic = a_topic(memory_broker)
    opened: list[Consumer] = []

    class Noting:
        def consumer(self, **names: Any) -> Consumer:
            opened.append(memory_broker.consumer(**names))
            return opened[-1]

    async def take_over() -> None:
        async with reading(Noting(), topic) as reader:
            for _ in range(2):
                await reader.chain_of(taking_over(1))
                with pytest.raises(ValueError, match="closed"):
                    opened[-1].poll(0)
            assert len(opened) == 2

    asyncio.run(take_over())


@pytest.mark.parametrize(
    ("sample_bytes", "expected"), [(10, (256, 64)), (64 << 20, (256, 128)), (1 << 30, (2048, 2048))]
)
def test_bounds_leave_room_for_what_a_sample_may_have(sample_bytes: int, expected: tuple[int, int]) -> None:
    bounds = TurnBounds.for_samples_of(sample_bytes)
    assert (bounds.most_bytes >> 20, bounds.most_replica_bytes >> 20) == expected


def test_strangers_neither_stop_a_pass_nor_fill_it(broker: Broker) -> None:
    """Rubbish and huge records under the names of rollouts that are taken up, and of others."""
    topic = a_topic(broker, max_message_bytes=str(8 << 20))
    with broker.producer(client_id="stranger") as producer:
        for group in (1, 2, 3, 9):
            write(producer, topic, a_turn(group, 0))
        for number in range(6):
            write(producer, topic, a_turn(9, number, num_tokens=300_000))
            write(producer, topic, a_turn(1, number + 1, num_tokens=300_000))
            producer.send(topic, 0, b"\xff" * (4 << 20), headers=headers_like(2))
        for group in (1, 2, 3):
            write(producer, topic, a_turn(group, 1))
        producer.flush(60)

    async def take_over() -> None:
        async with reading(broker, topic, most_bytes=6 << 20, most_replica_bytes=4 << 20) as reader:
            tasks = [taking_over(group) for group in (1, 2, 3)]
            chains = await asyncio.gather(*map(reader.chain_of, tasks))
            assert [numbers(chain) for chain in chains] == [[], [0, 1], [0, 1]]
            assert reader.num_passes == 1

    asyncio.run(take_over())


def test_rollouts_that_are_too_much_together_are_read_in_several_passes(broker: Broker) -> None:
    topic = a_topic(broker, num_partitions=num_partitions)
    with broker.producer(client_id="worker") as producer:
        for number in range(5):
            for group in range(6):
                write(producer, topic, a_turn(group, number, num_tokens=500), group % num_partitions)
        producer.flush(30)

    async def take_over() -> None:
        # Each has about 40 kB.
        async with reading(broker, topic, most_bytes=100_000) as reader:
            tasks = [taking_over(group, partition=group % num_partitions) for group in range(6)]
            chains = await asyncio.gather(*map(reader.chain_of, tasks))
            assert all(numbers(chain) == [0, 1, 2, 3, 4] for chain in chains)
            assert 1 < reader.num_passes <= 6

    asyncio.run(take_over())


def test_a_topic_that_cannot_be_read_fails_all_that_wait(broker: Broker) -> None:
    async def take_over() -> None:
        async with reading(broker, "no-such-topic") as reader:
            asked = [reader.chain_of(taking_over(group)) for group in (1, 2)]
            ends = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(end) for end in ends] == [TopicMismatch] * 2

    asyncio.run(take_over())
