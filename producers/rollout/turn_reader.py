"""Turns of earlier attempts, read at once for all rollouts that are taken up at the same time.

A worker that dies leaves all its rollouts at once, and others take them up together.

consumes   `turns`, from where the earliest of their tasks begins to an end fetched then; on a thread of its own, by a
           consumer for each pass: what it has fetched beyond the end stays in memory as long as it is open
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
from rollog.kernel.errors import BrokerError
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.sessions.turn_chain import Chain
    from rollog.kernel.broker.ports import Broker
    from schemas import RolloutTask

log = get_logger("rollout")

_most_bytes = 256 << 20
_most_replica_bytes = 64 << 20


@dataclass(eq=False, slots=True)
class _Asked:
    """A rollout that is taken up. What it may take over is known when it `is_answered`."""

    task: RolloutTask
    is_answered: bool = False
    chain: Chain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBounds:
    """How many bytes of turns are held about, in one pass: of all rollouts, and of each."""

    most_bytes: int = _most_bytes
    most_replica_bytes: int = _most_replica_bytes

    @classmethod
    def for_samples_of(cls, num_bytes: int) -> TurnBounds:
        """Bounds within which every rollout is taken over whose sample has at most so many bytes.

        The ids and logprobs of a sample are no less than those of its turns; the other half is for what Python takes
        for each turn.
        """
        most_replica_bytes = max(_most_replica_bytes, 2 * num_bytes)
        return cls(most_bytes=max(_most_bytes, most_replica_bytes), most_replica_bytes=most_replica_bytes)


class TurnReader:
    """Reads for one worker, within bounds of memory."""

    def __init__(self, broker: Broker, topic: str, client_id: str, bounds: TurnBounds) -> None:
        self._broker = broker
        self._topic = topic
        self._client_id = client_id
        self._most_bytes = bounds.most_bytes
        self._most_replica_bytes = min(bounds.most_bytes, bounds.most_replica_bytes)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="turns")
        self._waiting: list[_Asked] = []
        self._under_way: asyncio.Task[None] | None = None
        self._is_closed = False
        self.num_passes = 0
        """How often it went through the topic."""

    async def chain_of(self, task: RolloutTask) -> Chain | None:
        """What a task may take over: of the newest attempt that wrote a turn. Raises BrokerError, also once closed.

        None where there is nothing, and where more is found under its name than a rollout comes to.
        """
        if task.resume_attempt is None or task.turns_position is None:
            return None
        asked = _Asked(task)
        self._waiting.append(asked)
        try:
            while not asked.is_answered:
                # Others wait for the pass, too: it goes on where one of them is cancelled.
                await asyncio.shield(self._pass(task))
        finally:
            self._waiting.remove(asked)
        return asked.chain

    async def close(self) -> None:
        """End its thread, behind a pass that is under way, which answers those that wait for it. Idempotent."""
        self._is_closed = True
        if self._under_way is not None:
            await asyncio.wait([self._under_way])
        self._thread.shutdown()

    def _pass(self, task: RolloutTask) -> asyncio.Task[None]:
        if self._under_way is None or self._under_way.done():
            if self._is_closed:
                raise BrokerError(
                    f"task {task.task_id}: turns of earlier attempts at {self._topic} are not read any more, because "
                    "this worker leaves; whoever gets the task next reads them"
                )
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
        found = FoundTurns(tasks, most_bytes=self._most_bytes, most_replica_bytes=self._most_replica_bytes)
        places = {task.sample_partition: TopicPartition(self._topic, task.sample_partition) for task in tasks}
        with self._broker.consumer(client_id=self._client_id) as consumer:
            ends = consumer.end_offsets(places.values())
            begins = consumer.beginning_offsets(places.values())
            starts = {
                place: max(
                    begins[place],
                    min(task.turns_position or 0 for task in tasks if task.sample_partition == partition),
                )
                for partition, place in places.items()
            }
            for record in read_until(consumer, starts, ends):
                found.take(record)
        self._tell(found)
        return found.chains()

    def _tell(self, found: FoundTurns) -> None:
        if found.num_unreadable:
            log.warning("turns cannot be read", num=found.num_unreadable, topic=self._topic)
        for task_id in found.given_up:
            log.warning(
                "more turns than a rollout comes to: it begins anew",
                task=task_id,
                most_bytes=self._most_replica_bytes,
            )
