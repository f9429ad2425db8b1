"""What a dispatcher writes: tasks, cancels, grants, notices, lost samples and dead letters, encoded and addressed."""

from __future__ import annotations

from collections import defaultdict, deque
from contextlib import suppress
from typing import TYPE_CHECKING

from rollog.kernel.broker.limits import record_bytes
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.errors import RecordTooLarge
from rollog.rules.dead_letters import dead_letter
from schemas import (
    Cancel,
    CancelReason,
    DatasetEnd,
    Fence,
    Grant,
    Kind,
    Revoke,
    RunClosed,
    Stop,
    Stopped,
    TaskBatch,
)
from schemas.codec import encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.dispatcher.credits import OpenTask
    from rollog.kernel.broker.ports import Delivery, Producer
    from rollog.kernel.broker.ports import Record as StoredRecord
    from rollog.kernel.broker.topics import RunTopics
    from schemas import RolloutTask, Sample
    from schemas.records import Record

flush_seconds = 30.0


class TaskSender:
    """Sends under one epoch through one idempotent producer."""

    def __init__(
        self,
        producer: Producer,
        topics: RunTopics,
        epoch: int,
        num_samples_partitions: int,
        *,
        max_record_bytes: int,
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._epoch = epoch
        self._max_record_bytes = max_record_bytes
        self._num_samples_partitions = num_samples_partitions
        self._on_their_way: defaultdict[TopicPartition, deque[Delivery]] = defaultdict(deque)
        self._acknowledged: dict[TopicPartition, int] = {}

    def fence(self, partition: int) -> Delivery:
        """Void the tasks of earlier epochs from here on."""
        return self._send(self._topics.tasks, partition, Fence(epoch=self._epoch))

    def tasks(self, tasks: Sequence[RolloutTask], partition: int) -> Delivery | None:
        """Hand tasks to the holder of their grant, in one record; None where several are too large for one."""
        record = tasks[0] if len(tasks) == 1 else TaskBatch(tasks=tuple(tasks))
        value, headers = encode(record), headers_of(record)
        if len(tasks) > 1 and record_bytes(value, None, headers) > self._max_record_bytes:
            return None
        return self._send_encoded(self._topics.tasks, partition, value, headers)

    def cancel(self, open_task: OpenTask, partition: int, reason: CancelReason) -> None:
        """Take a task back."""
        task = open_task.task
        self._send(
            self._topics.tasks,
            partition,
            Cancel(task_id=task.task_id, epoch=self._epoch, grant_id=task.grant_id, reason=reason),
        )

    def stop(self, grant: Grant) -> None:
        """Tell the holder of a grant that the run ends."""
        self._send(self._topics.tasks, grant.partition, Stop(epoch=self._epoch, grant_id=grant.grant_id))

    def lost(self, sample: Sample) -> None:
        """Write the sample of an attempt that will not come back."""
        topic = self._topics.samples if sample.kind is Kind.TRAINING else self._topics.evaluations
        self._send(topic, sample.group_id % self._num_samples_partitions, sample)

    def control(self, record: Grant | Revoke | DatasetEnd | Stopped | RunClosed) -> Delivery:
        """Tell everybody something about the run."""
        delivery = self._send(self._topics.control, 0, record)
        if isinstance(record, Grant):
            reach(CrashPoint.GRANT_SENT)
        return delivery

    def dead_letter(self, record: StoredRecord, reason: str) -> None:
        """Set a record aside that cannot be read."""
        letter = dead_letter(
            record,
            reason=reason,
            error_class="SchemaError",
            owner="dispatcher",
            most_bytes=self._max_record_bytes,
        )
        self._send(self._topics.dead_letters, 0, letter)

    def flush(self) -> None:
        """Wait until everything sent is acknowledged."""
        self._producer.flush(flush_seconds)

    def acknowledged(self) -> dict[TopicPartition, int] | None:
        """The offset behind the last record sent to each partition; None while one is not acknowledged."""
        for place in self._on_their_way:
            self._note_acknowledged(place)
        return None if any(self._on_their_way.values()) else dict(self._acknowledged)

    def _send(self, topic: str, partition: int, record: Record) -> Delivery:
        return self._send_encoded(topic, partition, encode(record), headers_of(record))

    def _send_encoded(
        self, topic: str, partition: int, value: bytes, headers: list[tuple[str, bytes]]
    ) -> Delivery:
        delivery = self._producer.send(topic, partition, value, headers=headers)
        place = TopicPartition(topic, partition)
        self._on_their_way[place].append(delivery)
        self._note_acknowledged(place)
        return delivery

    def _note_acknowledged(self, place: TopicPartition) -> None:
        # Order is kept per partition: nothing behind one that is on its way is acknowledged.
        deliveries = self._on_their_way[place]
        while deliveries and deliveries[0].done():
            with suppress(RecordTooLarge):  # it is in no log
                self._acknowledged[place] = deliveries[0].offset(timeout_seconds=0) + 1
            deliveries.popleft()
