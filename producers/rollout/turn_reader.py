"""Turns of earlier attempts, read at once for all rollouts that are taken up at the same time.

A worker that dies leaves all its rollouts at once, and others take them up together.

consumes   `turns`, from where the earliest of their tasks begins to an end fetched then; by a consumer that is made on
           first use, on a thread of its own
waits for  the pass that is under way: it goes through the partitions of all that waited as it began

    asks ──> waits ──pass──> has its chain, or nothing
               ^       │
               └───────┘ put aside (`producers.rollout.found_turns`), or it asked while the pass was under way
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from producers.rollout.found_turns import FoundTurns
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.sessions.turn_chain import Chain
    from rollog.kernel.broker.ports import Broker, Consumer
    from schemas import RolloutTask

log = get_logger("rollout")

most_bytes = 256 << 20
most_replica_bytes = 64 << 20


@dataclass(eq=False, slots=True)
class _Asked:
    """A rollout that is taken up. What it may take over is known when it `is_answered`."""

    task: RolloutTask
    is_answered: bool = False
    chain: Chain | None = None


class TurnReader:
    """Reads for one worker. Of turns it holds about `most_bytes` as it reads, and `most_replica_bytes` of a rollout."""

    def __init__(
        self,
        broker: Broker,
        topic: str,
        client_id: str,
        *,
        most_bytes: int = most_bytes,
        most_replica_bytes: int = most_replica_bytes,
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._client_id = client_id
        self._most_bytes = most_bytes
        self._most_replica_bytes = min(most_bytes, most_replica_bytes)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="turns")
        self._consumer: Consumer | None = None
        self._waiting: list[_Asked] = []
        self._under_way: asyncio.Task[None] | None = None
        self.num_passes = 0
        """How often it went through the topic."""

    async def chain_of(self, task: RolloutTask) -> Chain | None:
        """What a task may take over: of the newest attempt that wrote a turn. Raises BrokerError.

        None where there is nothing, and where more is found under its name than a rollout comes to.
        """
        if task.resume_attempt is None or task.turns_position is None:
            return None
        asked = _Asked(task)
        self._waiting.append(asked)
        try:
            while not asked.is_answered:
                # Others wait for the pass, too: it goes on where one of them is cancelled.
                await asyncio.shield(self._pass())
        finally:
            self._waiting.remove(asked)
        return asked.chain

    async def close(self) -> None:
        """Close the consumer, if there is one, and end its thread, behind a pass that is under way."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        if self._under_way is not None:
            await asyncio.wait([self._under_way])
        self._thread.shutdown()

    def _pass(self) -> asyncio.Task[None]:
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._answer(), name="turns of earlier attempts")
        return self._under_way

    async def _answer(self) -> None:
        """One pass for all that wait now."""
        asked = list(self._waiting)
        tasks = [each.task for each in asked]
        chains = await asyncio.get_running_loop().run_in_executor(self._thread, self._read, tasks)
        self.num_passes += 1
        for place, chain in chains.items():
            asked[place].is_answered, asked[place].chain = True, chain

    def _read(self, tasks: Sequence[RolloutTask]) -> dict[int, Chain | None]:
        if self._consumer is None:
            self._consumer = self._broker.consumer(client_id=self._client_id)
        places = {task.sample_partition: TopicPartition(self._topic, task.sample_partition) for task in tasks}
        ends = self._consumer.end_offsets(places.values())
        begins = self._consumer.beginning_offsets(places.values())
        starts = {
            place: max(
                begins[place],
                min(task.turns_position or 0 for task in tasks if task.sample_partition == partition),
            )
            for partition, place in places.items()
        }
        found = FoundTurns(tasks, most_bytes=self._most_bytes, most_replica_bytes=self._most_replica_bytes)
        for record in read_until(self._consumer, starts, ends):
            found.take(record)
        # What it has fetched beyond the ends is not to stay in memory until the next pass.
        self._consumer.assign({})
        if found.num_unreadable:
            log.warning("turns cannot be read", num=found.num_unreadable, topic=self._topic)
        for task_id in found.given_up:
            log.warning(
                "more turns than a rollout comes to: it begins anew",
                task=task_id,
                most_bytes=self._most_replica_bytes,
            )
        return found.chains()

    def _disconnect(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
