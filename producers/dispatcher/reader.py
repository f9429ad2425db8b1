"""From stored records to the dispatcher's state; what cannot be read is set aside once.

The dispatcher owns `control`, `workers` and `evaluations`: their undecodable records become its dead letters. Those
of `samples` belong to the trainer, those of `tasks` to the worker; a broken ledger ends the role.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Protocol

from rollog.kernel.logs import get_logger
from rollog.rules.control_log import ControlLog
from rollog.rules.dead_letters import DeadLetterLimit
from rollog.rules.headers import defective_header
from rollog.rules.ledger_chain import LedgerChain
from rollog.rules.reading import control_record, read_summary
from schemas import Kind, RoleStatus, Sample, Status, WorkerStatus
from schemas.codec import SchemaError, decode, decode_as
from schemas.headers import accepts_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from producers.dispatcher.state import DispatcherState
    from rollog.kernel.broker.ports import Record, TopicPartition
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.metrics import Metrics
    from rollog.rules.headers import SampleLimits

log = get_logger("dispatcher")


class SetsAside(Protocol):
    """What writes a dead letter; `TaskSender` does."""

    def dead_letter(self, record: Record, reason: str) -> None:
        """Set a record aside that cannot be read."""
        ...


class LogReader:
    """Folds records into the state, by topic."""

    def __init__(
        self,
        state: DispatcherState,
        topics: RunTopics,
        *,
        sender: SetsAside,
        metrics: Metrics,
        limits: SampleLimits,
        dead_lettered: set[tuple[str, int, int]],
        max_dead_letters_in_a_row: int,
    ) -> None:
        self._limit = DeadLetterLimit(max_dead_letters_in_a_row)
        self._state = state
        self._sender = sender
        self._metrics = metrics
        # Each sample is counted, and finding a label takes longer than counting.
        self._samples_of = cache(metrics.dispatcher_samples.labels)
        self._limits = limits
        self._dead_lettered = dead_lettered
        self._samples_topic = topics.samples
        self._steps_topic = topics.steps
        self._handlers = {
            topics.control: self._take_in_control,
            topics.steps: self._take_in_ledger,
            topics.samples: self._take_in_sample,
            topics.evaluations: self._take_in_evaluation,
            topics.workers: self._take_in_worker,
        }
        self._chain = LedgerChain(state.ledger.next_sequence, state.ledger.head)
        self._owned = frozenset({topics.control, topics.evaluations, topics.workers})
        self.ledger_position = 0
        self.ledger_end = 0
        """Offset behind the last ledger record that was folded: unlike the position, without what follows it."""
        self.samples_positions = [0] * limits.num_partitions

    def begin_at(self, positions: Mapping[TopicPartition, int], *, ledger_end: int) -> None:
        """Everything before these positions has been folded already, the last ledger record before `ledger_end`."""
        self.ledger_end = ledger_end
        for partition, offset in positions.items():
            if partition.topic == self._samples_topic:
                self.samples_positions[partition.partition] = offset
            elif partition.topic == self._steps_topic:
                self.ledger_position = offset

    @property
    def dead_lettered(self) -> frozenset[tuple[str, int, int]]:
        """Places of the dispatcher's own topics that are set aside."""
        return frozenset(self._dead_lettered)

    def take_in(self, record: Record, now: float) -> None:
        """Fold one record. Raises LedgerError where the ledger is broken, DecodeError for a flood of dead letters."""
        if record.unread is not None and record.topic in self._owned:
            self._set_aside(record, record.unread.reason)
            return
        self._handlers[record.topic](record, now)

    def _take_in_control(self, record: Record, now: float) -> None:
        decoded = control_record(record)
        if decoded is None:
            self._set_aside(record, "not a record of this topic")
            return
        refused = self._state.control.refused(decoded)
        if refused is not None:
            self._set_aside(record, refused, is_own=False)
            return
        self._limit.good(record.topic)
        self._state.on_control(decoded, now)

    def _take_in_ledger(self, record: Record, _now: float) -> None:
        found = self._chain.take(record)
        self.ledger_position = record.offset + 1
        if found is not None:
            self._state.on_ledger(*found)
            self.ledger_end = record.offset + 1

    def _take_in_sample(self, record: Record, _now: float) -> None:
        header, sample = read_summary(record, self._limits)
        self.samples_positions[record.partition] = record.offset + 1
        self._state.on_sample(header, sample)
        status = "dead" if sample is None else sample.status.value
        self._samples_of(Kind.TRAINING.value, status).inc()

    def _take_in_evaluation(self, record: Record, _now: float) -> None:
        try:
            sample = decode_as(Sample, record.value or b"")
        except SchemaError as error:
            self._set_aside(record, str(error))
            named = defective_header(
                partition=record.partition,
                offset=record.offset,
                value=record.value,
                named=record.header,
                defect=str(error),
            )
            open_task = self._state.credits.get(named.task_id)
            if open_task is not None and open_task.task.kind is Kind.EVALUATION:
                self._state.lose(open_task)
            return
        self._limit.good(record.topic)
        self._state.on_evaluation(sample)
        if sample.status is Status.FAILED:
            log.warning("evaluation failed", prompt=sample.prompt_id, error=sample.error_message)
        self._samples_of(Kind.EVALUATION.value, sample.status.value).inc()

    def set_aside_unreadable(self, control: Iterable[Record], workers: Iterable[Record]) -> None:
        """Set aside what was written to the dispatcher's topics while none was there to read it."""
        log_so_far = ControlLog(self._state.control.num_partitions)
        for record in control:
            decoded = control_record(record)
            if decoded is None:
                self._set_aside(
                    record, record.unread.reason if record.unread else "not a record of this topic"
                )
            elif (refused := log_so_far.refused(decoded)) is not None:
                self._set_aside(record, refused, is_own=False)
            else:
                log_so_far.add(decoded)
        for record in workers:
            if record.unread is not None:
                self._set_aside(record, record.unread.reason)
            elif record.value is not None and not _is_heartbeat(record.value):
                self._set_aside(record, "not a heartbeat")

    def _take_in_worker(self, record: Record, now: float) -> None:
        if record.value is None:
            self._state.on_tombstone((record.key or b"").decode(errors="replace"))
            return
        try:
            status = _heartbeat(record.value)
        except SchemaError as error:
            self._set_aside(record, str(error))
            return
        self._limit.good(record.topic)
        accepted = accepts_batches(record.header("accepts"))
        if isinstance(status, RoleStatus):
            self._state.on_role(status, now, accepts_batches=accepted)
        else:
            self._state.on_worker(status, now, accepts_batches=accepted)

    def _set_aside(self, record: Record, reason: str, *, is_own: bool = True) -> None:
        """Write its dead letter, once. What cannot be one of the run's own is no part of a flood of them."""
        place = (record.topic, record.partition, record.offset)
        if place in self._dead_lettered:
            return
        if is_own:
            self._limit.dead(record, reason)
        self._dead_lettered.add(place)
        self._sender.dead_letter(record, reason)
        topic = record.topic.rsplit(".", 1)[-1]
        self._metrics.broker_dead_letters.labels(topic).inc()
        log.warning("record set aside", topic=topic, offset=record.offset, reason=reason)


def _heartbeat(value: bytes) -> WorkerStatus | RoleStatus:
    """The heartbeat that these bytes are. Raises SchemaError for anything else."""
    decoded = decode(value)
    if isinstance(decoded, WorkerStatus | RoleStatus):
        return decoded
    raise SchemaError(f"expected a heartbeat, found a {type(decoded).__name__}")


def _is_heartbeat(value: bytes) -> bool:
    try:
        _heartbeat(value)
    except SchemaError:
        return False
    return True
