"""When a dispatcher writes its snapshot: every so often, between two turns, once all it has sent is acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.dispatcher.snapshot import FoldedLog, followed_partitions
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import drain
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import BrokerError, RollogError
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.dispatcher.issuing import Issuer
    from producers.dispatcher.reader import LogReader
    from producers.dispatcher.sender import TaskSender
    from producers.dispatcher.settings import DispatcherSettings
    from producers.dispatcher.state import DispatcherState
    from rollog.kernel.broker.ports import Consumer
    from rollog.kernel.snapshot_file import SnapshotFile

log = get_logger("dispatcher")

last_look_seconds = 5.0


class SnapshotWriter:
    """Writes the state of one dispatcher; `ends` are the positions from which it went on at its start."""

    def __init__(
        self,
        file: SnapshotFile,
        settings: DispatcherSettings,
        state: DispatcherState,
        *,
        consumer: Consumer,
        reader: LogReader,
        sender: TaskSender,
        issuer: Issuer,
        num_held_out: int,
        ends: Mapping[TopicPartition, int],
    ) -> None:
        self._file = file
        self._settings = settings
        self._state = state
        self._consumer = consumer
        self._reader = reader
        self._sender = sender
        self._issuer = issuer
        self._num_held_out = num_held_out
        self._ends = ends
        self._topics = RunTopics(settings.prefix, settings.run)
        self._control = TopicPartition(self._topics.control, 0)

    def write_if_due(self, now: float) -> None:
        """Write one if it is time and the moment allows it; call when all that was polled is folded."""
        if not self._file.is_due(now) or not self._state.ledger.has_genesis:
            return
        acknowledged = self._sender.acknowledged()
        if acknowledged is None or not self._is_in_office():
            return
        self._file.write(self._folded(acknowledged).to_plain(self._settings, self._num_held_out), now)

    def write_last(self, now: float) -> None:
        """Write one at the end of the role, when everything is flushed; none where the log cannot be read."""
        if not self._file.is_kept:
            return
        try:
            ends = self._consumer.end_offsets([self._control])
            for record in drain(self._consumer, ends, stalls_after_seconds=last_look_seconds):
                self._reader.take_in(record, now)
        except RollogError as error:
            log.warning("no snapshot at the end", error=str(error))
            return
        self._file.make_due()
        self.write_if_due(now)

    def _is_in_office(self) -> bool:
        """Whether `control` is read to an end fetched now, and holds no newer epoch."""
        try:
            end = self._consumer.end_offsets([self._control])[self._control]
        except BrokerError:
            return False  # later, when the broker answers
        is_read = self._consumer.position(self._control) >= end
        return is_read and self._state.control.epoch <= self._issuer.last_task[0]

    def _folded(self, acknowledged: Mapping[TopicPartition, int]) -> FoldedLog:
        positions = {
            place: self._position(place, acknowledged) for place in followed_partitions(self._settings)
        }
        evaluations = self._topics.evaluations
        return FoldedLog(
            state=self._state,
            positions=positions,
            last_task=self._issuer.last_task,
            dead_lettered={
                (topic, partition, offset)
                for topic, partition, offset in self._reader.dead_lettered
                # Anybody may be able to write a letter; one of a place that does not exist is nothing to remember.
                if topic != evaluations
                or offset >= positions.get(TopicPartition(topic, partition), offset + 1)
            },
        )

    def _position(self, place: TopicPartition, acknowledged: Mapping[TopicPartition, int]) -> int:
        if place.topic == self._topics.steps:
            return self._reader.ledger_end
        if place.topic == self._topics.samples:
            return self._reader.samples_positions[place.partition]
        if place.topic == self._topics.tasks:
            return max(self._ends[place], acknowledged.get(place, 0))
        if place.topic == self._topics.evaluations:
            return self._consumer.position(place)
        return self._ends[place]
