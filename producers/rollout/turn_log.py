"""`turns` as a worker writes and reads it: each turn acknowledged before it is used, chains of earlier attempts.

produces   `turns`, through the worker's sender; where the outcome of a record is not known, the worker ends
consumes   `turns`, through the worker's `TurnReader`, for a task that takes something over
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from producers.rollout.turn_reader import TurnBounds, TurnReader
from producers.sessions.journal import Journal
from rollog.kernel.logs import get_logger
from schemas import Kind

if TYPE_CHECKING:
    from producers.rollout.publishing import RecordWriter
    from producers.rollout.sender import SampleSender
    from producers.rollout.session import WorkerSession
    from producers.sessions.turn_chain import Chain
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.metrics import Metrics
    from schemas import RolloutTask, Turn

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
        max_sample_bytes: int,
    ) -> None:
        self._session = session
        self._sender = sender
        self._writer = writer
        self._metrics = metrics
        self._reader = TurnReader(
            broker,
            topics.turns,
            f"{session.worker_id}-turns",
            TurnBounds.for_samples_of(max_sample_bytes),
        )

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
        taken = await self._reader.chain_of(task) if may_resume else None
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

    async def close(self) -> None:
        """Close what it reads with."""
        await self._reader.close()
