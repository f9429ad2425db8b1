"""Ends of `turns`: every turn of a replica stands behind one that was fetched before its first task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import BrokerError, NotAuthorized
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Consumer

log = get_logger("dispatcher")

_refresh_seconds = 5.0


class TurnPositions:
    """Offsets that only grow. Older ones are as true: whoever takes a rollout up reads a little more.

    Without partitions the run keeps no turns.
    """

    def __init__(self, consumer: Consumer, topic: str, num_partitions: int) -> None:
        self._consumer = consumer
        self._partitions = [TopicPartition(topic, partition) for partition in range(num_partitions)]
        self._fetched_at: float | None = None
        self.positions: tuple[int, ...] = (0,) * num_partitions
        """By partition."""

    def refresh(self, now_seconds: float) -> None:
        """Fetch the ends now and then; where the broker is silent the last ones stay."""
        is_due = self._fetched_at is None or now_seconds - self._fetched_at >= _refresh_seconds
        if not self._partitions or not is_due:
            return
        self._fetched_at = now_seconds
        try:
            ends = self._consumer.end_offsets(self._partitions)
        except NotAuthorized:
            raise
        except BrokerError as error:
            log.warning("ends of turns are not known; rollouts taken up read more", error=str(error))
            return
        self.positions = tuple(ends[partition] for partition in self._partitions)
