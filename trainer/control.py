"""The trainer's view of `control`: where the dataset ended, and whether the workers have stopped.

Consumes `control`, read_committed, from its beginning. On a crash the next trainer reads it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.lifecycle import Component
from rollog.kernel.logs import get_logger
from schemas import DatasetEnd, Stopped
from schemas.codec import SchemaError, decode

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Broker

log = get_logger("trainer")


class ControlReader(Component):
    """Follows `control`. The newest epoch's `DatasetEnd` counts: an overtaken dispatcher may have written one."""

    def __init__(self, broker: Broker, topic: str) -> None:
        partition = TopicPartition(topic, 0)
        self._consumer = broker.consumer(client_id="trainer-control")
        self._consumer.assign({partition: self._consumer.beginning_offsets([partition])[partition]})
        self._dataset_end: DatasetEnd | None = None
        self.is_stopped = False

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    @property
    def last_group_id(self) -> int | None:
        """The dataset's last group, once it is known."""
        return None if self._dataset_end is None else self._dataset_end.last_group_id

    def poll(self) -> None:
        """Take in what has arrived, without waiting."""
        for record in self._consumer.poll(0.0):
            try:
                decoded = decode(record.value or b"")
            except SchemaError as error:
                log.warning("control record unreadable", offset=record.offset, error=error)
                continue
            match decoded:
                case DatasetEnd() if self._dataset_end is None or decoded.epoch >= self._dataset_end.epoch:
                    self._dataset_end = decoded
                case Stopped():
                    self.is_stopped = True
