"""`turns` as a worker writes and reads it: each turn acknowledged before it is used, chains of earlier attempts.

produces   `turns`, through the worker's sender; where the outcome of a record is not known, the worker ends
consumes   `turns`, from where a task says to an end fetched then, by a consumer that is made on first use
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from producers.sessions.journal import Journal
from producers.sessions.turn_chain import newest_chain
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.kernel.logs import get_logger
from schemas import Kind, SchemaError, Turn
from schemas.codec import decode_as

if TYPE_CHECKING:
    from collections.abc import Iterator

    from producers.rollout.publishing import RecordWriter
    from producers.rollout.sender import SampleSender
    from producers.rollout.session import WorkerSession
    from producers.sessions.turn_chain import Chain
    from rollog.kernel.broker.ports import Broker, Consumer, Record
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.metrics import Metrics
    from schemas import RolloutTask

log = get_logger("rollout")


class DurableTurns:
    """Writes the turns of one worker, and reads those of others."""

    def __init__(
        self,
        broker: Broker,
        topics: RunTopics,
        session: WorkerSession,
        *,
        sender: SampleSender,
        writer: RecordWriter,
        metrics: Metrics,
    ) -> None:
        self._broker = broker
        self._topic = topics.turns
        self._session = session
        self._sender = sender
        self._writer = writer
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="turns")
        self._consumer: Consumer | None = None

    async def write(self, turn: Turn, partition: int) -> None:
        """Return when the turn is acknowledged. Raises TurnTooLarge.

        Where the broker does not say, the sender ends the worker, and whoever waits here is cancelled.
        """
        acknowledged = asyncio.Event()
        outgoing = self._writer.turn(turn, partition, acknowledged)
        await self._sender.wait_for_room()
        self._sender.add(outgoing)
        await acknowledged.wait()
        self._metrics.rollout_turns_kept.inc()

    async def journal(self, task: RolloutTask, *, may_resume: bool) -> Journal | None:
        """Where the turns of a started task are kept, and what it takes over. Raises BrokerError.

        None for an evaluation: its group is the number of a held-out prompt, and turns are told apart by group.
        """
        if task.kind is Kind.EVALUATION:
            return None
        taken = await self._chain_of(task) if may_resume else None
        if taken is not None and self._is_of_other_weights(taken):
            log.warning("turns of other weights are not taken over", task=task.task_id, of=taken.task_id)
            taken = None
        if task.resume_attempt is not None:
            self._metrics.rollout_resumptions.labels("anew" if taken is None else "resumed").inc()
        if taken is not None:
            log.info("rollout taken up", task=task.task_id, of=taken.task_id, turns=len(taken.turns))
        return Journal(
            task,
            self._session.worker_id,
            self,
            digest_of=self._session.digest_of,
            taken=taken,
            on_served=lambda turn: self._served(task, turn),
        )

    def _is_of_other_weights(self, chain: Chain) -> bool:
        return any(
            self._session.contradicts(segment.version, segment.weights_digest)
            for taken in chain.turns
            for segment in taken.turn.segments
        )

    def _served(self, task: RolloutTask, turn: Turn) -> None:
        """What is served again is of the rollout now; what is not may be as old as it likes."""
        digests = {segment.version: segment.weights_digest for segment in turn.segments}
        self._session.took_over(task.task_id, min(digests), digests)
        self._metrics.rollout_turns_served_again.inc()

    async def _chain_of(self, task: RolloutTask) -> Chain | None:
        if task.resume_attempt is None or task.turns_position is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, task)

    async def close(self) -> None:
        """Close the consumer, if there is one, and end its thread."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    def _disconnect(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _read(self, task: RolloutTask) -> Chain | None:
        assert task.resume_attempt is not None
        return newest_chain(self._turns_of(task), earliest_attempt=task.resume_attempt, attempt=task.attempt)

    def _turns_of(self, task: RolloutTask) -> Iterator[Turn]:
        """The turns of a task's replica, told apart by their headers before anything is decoded."""
        if self._consumer is None:
            self._consumer = self._broker.consumer(client_id=f"{self._session.worker_id}-turns")
        place = TopicPartition(self._topic, task.sample_partition)
        end = self._consumer.end_offsets([place])[place]
        begin = max(task.turns_position or 0, self._consumer.beginning_offsets([place])[place])
        wanted = (str(task.group_id).encode(), str(task.replica).encode())
        num_unreadable = 0
        for record in read_until(self._consumer, {place: begin}, {place: end}):
            if (record.header("group_id"), record.header("replica")) == wanted:
                turn = _decoded(record)
                if turn is None:
                    num_unreadable += 1
                elif (turn.group_id, turn.replica) == (task.group_id, task.replica):
                    yield turn
        if num_unreadable:
            log.warning(
                "turns cannot be read", task=task.task_id, partition=place.partition, num=num_unreadable
            )


def _decoded(record: Record) -> Turn | None:
    """The turn of a record; None where it is none: anybody may be able to write there, and one line tells of all."""
    try:
        return decode_as(Turn, record.value or b"")
    except SchemaError:
        return None
