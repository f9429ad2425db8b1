"""How a dispatcher takes a run over: a new epoch, fences on every tasks partition, the state read from the log.

On crash at any point nothing is lost: the next dispatcher takes a higher epoch and begins again.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.broker.ports import TopicPartition
from rollog.errors import BrokerTimeout, Superseded
from rollog.rules.reading import read_control_record, read_ledger_record, read_sample
from schemas import DeadLetter, DispatcherEpoch, Fence, Grant, RolloutTask, WorkerStatus
from schemas.codec import SchemaError, decode, decode_as, encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from producers.dispatcher.outbox import Outbox
    from producers.dispatcher.state import DispatcherState
    from rollog.broker.ports import Broker, Consumer, Record
    from rollog.broker.topics import RunTopics

commit_seconds = 30.0
fence_seconds = 60.0
stall_seconds = 60.0
poll_seconds = 0.1


def take_epoch(broker: Broker, topics: RunTopics, dispatcher_id: str) -> int:
    """Fence earlier dispatchers' transactions, then commit the next epoch to control."""
    control = TopicPartition(topics.control, 0)
    with broker.transactional_producer(topics.dispatcher_transactional_id) as producer:
        with broker.consumer(client_id="dispatcher-takeover") as consumer:
            records = read_until(consumer, {control: 0}, consumer.end_offsets([control]))
        epochs = [
            found.epoch for found in map(read_control_record, records) if isinstance(found, DispatcherEpoch)
        ]
        epoch = max(epochs, default=0) + 1
        notice = DispatcherEpoch(epoch=epoch, dispatcher_id=dispatcher_id)
        producer.begin()
        producer.send(topics.control, 0, encode(notice), headers=headers_of(notice))
        producer.commit(commit_seconds)
    return epoch


def fence_partitions(outbox: Outbox, topics: RunTopics, num_partitions: int) -> dict[TopicPartition, int]:
    """Append a fence to every tasks partition; returns the offset after each."""
    fences = {number: outbox.fence(number) for number in range(num_partitions)}
    return {
        TopicPartition(topics.tasks, number): fence.offset(fence_seconds) + 1
        for number, fence in fences.items()
    }


def read_until(
    consumer: Consumer, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[Record]:
    """All records of the partitions up to the given ends. Raises BrokerTimeout when reading stalls."""
    consumer.assign(starts)
    found: list[Record] = []
    deadline = time.monotonic() + stall_seconds
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        records = consumer.poll(poll_seconds)
        if records:
            deadline = time.monotonic() + stall_seconds
            found.extend(records)
        elif time.monotonic() > deadline:
            missing = [
                f"{place.topic}[{place.partition}]"
                for place, end in ends.items()
                if consumer.position(place) < end
            ]
            raise BrokerTimeout(
                f"no record for {stall_seconds:.0f} s while reading {', '.join(missing)} to its end; check the broker "
                "and start the dispatcher again"
            )
    return found


@dataclass(slots=True)
class History:
    """The log of a run, sorted by topic and decoded where the dispatcher needs it."""

    tasks: list[tuple[RolloutTask, int]] = field(default_factory=list)
    by_topic: defaultdict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    fences: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, record: Record, tasks_topic: str) -> None:
        """Take in one record; of tasks only those that no fence before them voids."""
        if record.topic != tasks_topic:
            self.by_topic[record.topic].append(record)
            return
        try:
            decoded = decode(record.value or b"")
        except SchemaError:
            return  # the worker that reads it sets it aside
        match decoded:
            case Fence(epoch=epoch):
                self.fences[record.partition] = max(self.fences[record.partition], epoch)
            case RolloutTask() as task if task.epoch >= self.fences[record.partition]:
                self.tasks.append((task, record.offset))


def rebuild(
    state: DispatcherState,
    history: History,
    topics: RunTopics,
    *,
    num_samples_partitions: int,
    num_replicas: int,
    now: float,
) -> dict[str, Grant]:
    """Fold a history into an empty state; returns the live grants by worker."""
    workers_of_grants: dict[str, str] = {}
    for record in history.by_topic[topics.control]:
        decoded = read_control_record(record)
        state.on_control(decoded, now)
        if isinstance(decoded, Grant):
            workers_of_grants[decoded.grant_id] = decoded.worker_id
    for record in history.by_topic[topics.steps]:
        state.on_ledger(*read_ledger_record(record))
    for task, offset in history.tasks:
        state.on_task(task, workers_of_grants.get(task.grant_id, ""), offset)
    for record in history.by_topic[topics.samples]:
        state.on_sample(read_sample(record, num_samples_partitions, num_replicas)[0])
    _take_in_workers(state, history.by_topic[topics.workers], now)
    return {
        worker.worker_id: worker.grant
        for worker in state.workers.workers.values()
        if worker.grant is not None
    }


def lettered_places(records: Iterable[Record]) -> set[tuple[str, int, int]]:
    """Places of records that already have their dead letter."""
    places = set()
    for record in records:
        try:
            letter = decode_as(DeadLetter, record.value or b"")
        except SchemaError:
            continue
        places.add((letter.topic, letter.partition, letter.offset))
    return places


def check_epoch(state: DispatcherState, epoch: int) -> None:
    """Raise Superseded when a newer dispatcher owns the run."""
    if state.highest_epoch > epoch:
        raise Superseded(
            f"a dispatcher with epoch {state.highest_epoch} has taken over from this one (epoch {epoch}); "
            "only one may run: leave the newer one alone"
        )


def _take_in_workers(state: DispatcherState, records: Iterable[Record], now: float) -> None:
    for record in records:
        if record.value is None:
            state.on_departure((record.key or b"").decode(errors="replace"))
            continue
        try:
            state.on_worker(decode_as(WorkerStatus, record.value), now)
        except SchemaError:
            continue  # judged by whoever read it first; the next heartbeat tells as much
