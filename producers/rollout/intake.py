"""Records that a worker reads, brought to its session: decoded, or refused with a word to the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.rollout.actions import failed
from producers.rollout.outcomes import undecodable_task_sample
from producers.rollout.tasks import TaskLimits
from rollog.kernel.logs import get_logger
from rollog.rules.dead_letters import DeadLetterLimit
from schemas import RunClosed, SchemaError, WeightsPruned, WeightVersion
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from producers.rollout.actions import Action
    from producers.rollout.publishing import RecordWriter
    from producers.rollout.reporting import WorkerReport
    from producers.rollout.sender import SampleSender
    from producers.rollout.session import WorkerSession
    from producers.rollout.settings import RolloutSettings
    from rollog.kernel.broker.ports import Record
    from rollog.kernel.broker.topics import RunTopics
    from schemas import Sample

_log = get_logger("rollout")


class RecordIntake:
    """Takes in records of tasks, control and weights.

    `act` does what the session asks for, `publish` writes a sample to a partition. `said_closed` is what control last
    said of the run's end: it is heeded where the ledger says the same.
    """

    def __init__(
        self,
        settings: RolloutSettings,
        topics: RunTopics,
        session: WorkerSession,
        *,
        report: WorkerReport,
        writer: RecordWriter,
        sender: SampleSender,
        act: Callable[[Iterable[Action]], None],
        publish: Callable[[Sample, int], None],
    ) -> None:
        self._topics = topics
        self._session = session
        self._report = report
        self._writer = writer
        self._sender = sender
        self._act = act
        self._publish = publish
        self._num_sample_partitions = settings.broker.samples_partitions
        self._dead_letters = DeadLetterLimit(settings.broker.max_dead_letters_in_a_row)
        self._task_limits = TaskLimits(
            num_sample_partitions=settings.broker.samples_partitions, num_replicas=settings.num_replicas
        )
        self.said_closed: RunClosed | None = None

    def take(self, records: Iterable[Record]) -> None:
        """Take in what was read, in its order."""
        for record in records:
            if record.topic == self._topics.tasks:
                self._take_task(record)
            elif record.topic == self._topics.control:
                self._take_control(record)
            else:
                self._take_weights(record)

    def _take_control(self, record: Record) -> None:
        try:
            decoded = decode(record.value or b"")
        except SchemaError as error:
            _log.warning("control record ignored", offset=record.offset, error=str(error))
            return
        if (refused := self._session.why_refused(decoded)) is not None:
            _log.warning("control record ignored", offset=record.offset, error=refused)
        elif isinstance(decoded, RunClosed):
            self.said_closed = decoded
        else:
            self._act(self._session.on_control(decoded))

    def _take_weights(self, record: Record) -> None:
        try:
            notice = decode(record.value or b"")
        except SchemaError as error:
            _log.warning("weights notice ignored", offset=record.offset, error=str(error))
            return
        if isinstance(notice, WeightsPruned):
            return  # never the newest: what is fetched and fails for it is followed by the newest
        if not isinstance(notice, WeightVersion):
            _log.warning("weights notice ignored", offset=record.offset, error=f"a {type(notice).__name__}")
            return
        if (refused := self._session.why_refused_weights(notice)) is not None:
            _log.warning("weights notice ignored", offset=record.offset, error=refused)
            return
        self._act(self._session.on_weights(notice))

    def _take_task(self, record: Record) -> None:
        grant = self._session.grant
        # Records polled before the assignment changed may belong to another grant.
        if grant is None or record.partition != grant.partition or record.offset < grant.start_offset:
            return
        try:
            decoded = self._task_limits.decoded(record)
        except SchemaError as error:
            self._session.on_undecodable_task(record.offset)
            self._refuse_task(record, error, grant.grant_id)
            return
        self._dead_letters.good(record.topic)
        self._act(self._session.on_task(decoded, record.offset))

    def _refuse_task(self, record: Record, error: SchemaError, grant_id: str) -> None:
        """Dead-letter a task that is no record of ours; its failed sample goes where its headers lead."""
        self._dead_letters.dead(record, str(error))
        self._report.dead_letter("tasks")
        self._sender.add(self._writer.dead_letter(record, error, self._session.worker_id))
        ending = failed("UndecodableTask", str(error))
        sample = undecodable_task_sample(
            record, self._session.worker_id, grant_id, self._session.epoch, ending
        )
        if sample is not None:
            self._publish(sample, max(0, sample.group_id) % self._num_sample_partitions)
