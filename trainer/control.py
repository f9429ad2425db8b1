"""The trainer's view of `control` and `tasks`: what was ordered, where the dataset ended, who stopped, who took over.

Consumes `control`, read_committed, from its beginning, and `tasks` from where a snapshot has come. Keeps ids only, of
groups that are not closed. On a crash the next trainer reads again; what it has judged before stands in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import drain
from rollog.kernel.errors import BrokerError, NotAuthorized
from rollog.kernel.lifecycle import Component
from rollog.kernel.logs import get_logger
from rollog.rules.control_log import ControlLog
from rollog.rules.epochs import is_successor, superseded
from rollog.rules.issued_tasks import IssuedTasks
from rollog.rules.reading import control_record
from schemas import DatasetEnd, Fence, Kind, RolloutTask, Stopped, TrainerEpoch
from schemas.codec import SchemaError, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from rollog.kernel.broker.ports import Broker, Record
    from rollog.kernel.broker.topics import RunTopics
    from rollog.rules.headers import SampleHeader
    from schemas import Sample

log = get_logger("trainer")

JudgedSample = tuple["SampleHeader", "Sample | None"]


@dataclass(slots=True, kw_only=True)
class KnownTasks:
    """What `tasks` says, read up to `positions`: tasks of groups that are not closed, and the newest group issued."""

    issued: IssuedTasks = field(default_factory=IssuedTasks)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    newest_group: int = -1


class ControlReader(Component):
    """Follows `control` and `tasks`.

    The newest epoch's `DatasetEnd` counts, because an overtaken dispatcher may have written one; one that is before a
    group with tasks cannot be.

    `is_issued` says whether a task can be one of the run's dispatchers, `closed_groups` are those of the ledger.
    `known` is what need not be read again.

    A sample may be read before its task. So one whose task is not known waits until both topics are read up to the ends
    they had after it was read: a task stands in the log before any sample of it. What is not there then never was.
    """

    def __init__(
        self,
        broker: Broker,
        topics: RunTopics,
        epoch: TrainerEpoch,
        *,
        num_task_partitions: int,
        is_issued: Callable[[RolloutTask], bool],
        closed_groups: Collection[int],
        other_writers: Iterable[str] = (),
        known: KnownTasks | None = None,
    ) -> None:
        known = known or KnownTasks()
        self._epoch = epoch
        self._control_topic = topics.control
        self._partitions = [TopicPartition(topics.control, 0)] + [
            TopicPartition(topics.tasks, partition) for partition in range(num_task_partitions)
        ]
        self._consumer = broker.consumer(client_id="trainer-control")
        beginnings = self._consumer.beginning_offsets(self._partitions)
        self._consumer.assign(
            {place: max(begin, known.positions.get(place, 0)) for place, begin in beginnings.items()}
        )
        self._log = ControlLog(num_task_partitions)
        self._issued = known.issued
        self._issued.forget([group for group in self._issued.group_ids if group in closed_groups])
        self._is_issued = is_issued
        self._closed_groups = closed_groups
        self._other_writers = frozenset(other_writers)
        self._ends: dict[TopicPartition, int] | None = None
        self._dataset_end: DatasetEnd | None = None
        self._newest_group = known.newest_group
        self.is_stopped = False

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    @property
    def known(self) -> KnownTasks:
        """What was read of `tasks` so far; it goes on changing."""
        return KnownTasks(
            issued=self._issued,
            positions={place: self._consumer.position(place) for place in self._partitions[1:]},
            newest_group=self._newest_group,
        )

    @property
    def last_group_id(self) -> int | None:
        """The dataset's last group, once it is known."""
        if self._dataset_end is None or self._dataset_end.last_group_id < self._newest_group:
            return None
        return self._dataset_end.last_group_id

    @property
    def ordered_groups(self) -> list[int]:
        """Groups with tasks that are not closed, in order."""
        return self._issued.group_ids

    def poll(self, timeout_seconds: float = 0.0) -> None:
        """Take in what has arrived. Raises Superseded when another trainer has taken over."""
        for record in self._consumer.poll(timeout_seconds):
            self._take(record)

    def catch_up(self) -> None:
        """Take in everything that is committed now. Raises Superseded, or BrokerTimeout when that cannot be read."""
        for record in drain(self._consumer, self._consumer.end_offsets(self._partitions)):
            self._take(record)

    def _take(self, record: Record) -> None:
        if record.topic == self._control_topic:
            self._take_control(record)
        else:
            self._take_task(record)

    def can_place(self, arrived: Iterable[JudgedSample], timeout_seconds: float) -> bool:
        """Whether what was read of dispatchers suffices to say where these samples come from; reads on where not."""
        if all(self._is_known(header, sample) for header, sample in arrived):
            self._ends = None
            return True
        if self._ends is None:
            self._ends = self._ends_now()
        if self._ends is None or not self._has_reached(self._ends, timeout_seconds):
            return False
        self._ends = None
        return True

    def _ends_now(self) -> dict[TopicPartition, int] | None:
        """Up to where both topics are to be read now; None where the broker does not say."""
        try:
            return self._consumer.end_offsets(self._partitions)
        except NotAuthorized:
            raise
        except BrokerError as error:
            log.warning("what arrived waits for the broker, to be compared with its tasks", error=str(error))
            return None

    def _has_reached(self, ends: Mapping[TopicPartition, int], timeout_seconds: float) -> bool:
        """Read on; whether both topics are read up to these ends. Raises Superseded."""
        if any(self._consumer.position(place) < end for place, end in ends.items()):
            self.poll(timeout_seconds)
        return all(self._consumer.position(place) >= end for place, end in ends.items())

    def placed(self, header: SampleHeader, sample: Sample | None) -> SampleHeader:
        """The header as it counts: of no group, and dead, where the log does not know where it comes from."""
        if header.group_id in self._closed_groups:
            return header
        return self._issued.placed(
            header,
            sample,
            grants=self._log.grants,
            newest_epoch=self._log.epoch,
            other_writers=self._other_writers,
        )

    def forget(self, closed_groups: Iterable[int]) -> None:
        """These groups are closed: their tasks need not be known any more."""
        self._issued.forget(closed_groups)

    def _is_known(self, header: SampleHeader, sample: Sample | None) -> bool:
        if header.group_id < 0 or header.group_id in self._closed_groups:
            return True
        if sample is not None and sample.worker_id in self._other_writers:
            return self._issued.has_group(header.group_id)
        return self._issued.knows(header, grants=self._log.grants, newest_epoch=self._log.epoch)

    def _take_control(self, record: Record) -> None:
        decoded = control_record(record)
        # The dispatcher owns the topic: it sets aside what is ignored here.
        refused = "not a record of this topic" if decoded is None else self._log.refused(decoded)
        if decoded is None or refused is not None:
            log.warning("control record ignored", offset=record.offset, error=refused)
            return
        if not self._log.add(decoded):
            return
        match decoded:
            case TrainerEpoch() if is_successor(decoded, self._epoch):
                raise superseded(decoded, self._epoch)
            case DatasetEnd():
                self._dataset_end = decoded
            case Stopped():
                self.is_stopped = True

    def _take_task(self, record: Record) -> None:
        try:
            decoded = decode(record.value or b"")
        except SchemaError:
            return  # the worker that reads it sets it aside
        match decoded:
            case Fence(epoch=epoch):
                self._issued.add_fence(epoch, partition=record.partition, offset=record.offset)
            case RolloutTask(kind=Kind.TRAINING) as task if self._is_issued(task):
                self._newest_group = max(self._newest_group, task.group_id)
                if task.group_id in self._closed_groups:
                    return
                self._issued.add(task, partition=record.partition, offset=record.offset)
