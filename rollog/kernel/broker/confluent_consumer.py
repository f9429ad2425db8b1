"""The consumer over confluent-kafka: manual assignment, committed records only."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ConfluentTopicPartition

from rollog.kernel.broker.confluent_errors import error_in, translated
from rollog.kernel.broker.ports import Record, TopicPartition
from rollog.kernel.errors import BrokerError, BrokerTimeout, BrokerUnreachable
from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from rollog.kernel.broker.confluent_errors import CommitReports, LastErrors
    from rollog.kernel.broker.kafka_topics import TopicDirectory
    from rollog.kernel.broker.refusal_watch import RefusalWatch

logger = logging.getLogger(__name__)

_close_timeout_seconds = 5.0
_retry_seconds = 0.02
_metadata_timeout_seconds = 1.0
_max_poll_records = 200
"""Whose values are copied before the first is looked at: with more of them, they are in no cache any longer then."""
_beginning, _end = -2, -1
"""What the protocol asks for in the place of a time."""
_passing = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001 - the library names its own errors so
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._DESTROY_BROKER,  # noqa: SLF001 - it is found anew
        KafkaError._TIMED_OUT,  # noqa: SLF001
        # Whether it refuses this client, or is not ready yet, its watch finds out.
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError._SSL,  # noqa: SLF001
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # A leader that is elected anew, after its broker was fenced or died: client and broker hear of it in any order.
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)
"""A broker that is away or not ready yet: the library asks again by itself."""
_unknown_here = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001
"""What the library says of a topic that its metadata lack: it is gone, or no broker answers who has it."""
_unreadable = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})  # noqa: SLF001
_gone = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})  # noqa: SLF001


class ConfluentConsumer(Component):
    """Reads assigned partitions from given offsets; an outage of the broker is a poll that returns nothing."""

    def __init__(
        self,
        raw: Any,
        errors: LastErrors,
        commits: CommitReports,
        directory: TopicDirectory,
        group_id: str | None,
        *,
        offsets_timeout_seconds: float,
        refusals: RefusalWatch,
    ) -> None:
        self._raw = raw
        self._refusals = refusals
        self._errors = errors
        self._commits = commits
        self._directory = directory
        self._group_id = group_id
        self._offsets_timeout_seconds = offsets_timeout_seconds
        self._positions: dict[tuple[str, int], int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._failure: BrokerError | None = None
        self._gone: dict[tuple[str, int], BrokerError] = {}
        """Places that stand still because their offset is not there: the library says so once only."""
        self._is_closed = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from these offsets on; see `rollog.kernel.broker.ports.Consumer`."""
        self._require_open()
        for partition in positions:
            self._directory.require(partition.topic, partition.partition)
        wanted = {(at.topic, at.partition): offset for at, offset in positions.items()}
        left = [place for place, offset in self._positions.items() if wanted.get(place) != offset]
        new = [place for place, offset in wanted.items() if self._positions.get(place) != offset]
        try:
            if left:
                self._raw.incremental_unassign([ConfluentTopicPartition(*place) for place in left])
            if new:
                self._raw.incremental_assign(
                    [ConfluentTopicPartition(*place, wanted[place]) for place in new]
                )
        except KafkaException as exception:
            raise self._errors.translated(exception, "assigning partitions") from exception
        self._positions = wanted
        for place in left:
            self._gone.pop(place, None)

    def poll(self, timeout_seconds: float, max_records: int | None = None) -> list[Record]:
        """Records in offset order per partition; an empty list when none came in time."""
        self._require_open()
        self._raise_failure()
        records = self._records(self._messages(timeout_seconds, max_records or _max_poll_records))
        if not records:
            self._raise_failure()
            if self._gone:
                raise next(iter(self._gone.values()))
            if self._errors.is_disconnected:
                self._refusals.silent()
        return records

    def position(self, partition: TopicPartition) -> int:
        """Next offset this consumer would return; it moves past transaction markers once their end is reached."""
        self._require_open()
        position = self._positions.get((partition.topic, partition.partition))
        if position is None:
            raise ValueError(f"{partition.topic} partition {partition.partition} is not assigned")
        return position

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Smallest offsets that can still be read."""
        return self._offsets(partitions, _beginning)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets, fetched now."""
        return self._offsets(partitions, _end)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit positions under the group id, in the background; a failure is logged and forgotten."""
        self._require_open()
        if self._group_id is None:
            raise ValueError("this consumer has no group id to commit under")
        self._committed |= offsets
        self._commit(offsets, is_awaited=False)

    def close(self) -> None:
        """End the connection. The newest positions are committed once more, because closing drops what is under way.

        While a commit waits for a broker that is away, the library neither returns nor lets itself be closed. So a
        thread does it, which ends when the broker is back, or with the process.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if not self._committed:
            self._raw.close()
            return
        ending = threading.Thread(target=self._end, name="kafka-consumer-close", daemon=True)
        ending.start()
        ending.join(_close_timeout_seconds)

    def _end(self) -> None:
        self._commit(self._committed, is_awaited=True)
        self._raw.close()

    def _commit(self, offsets: Mapping[TopicPartition, int], *, is_awaited: bool) -> None:
        places = [ConfluentTopicPartition(at.topic, at.partition, offset) for at, offset in offsets.items()]
        try:
            self._raw.commit(offsets=places, asynchronous=not is_awaited)
        except KafkaException as exception:
            self._commits.failed(error_in(exception))

    def _messages(self, timeout_seconds: float, most: int) -> list[Any]:
        """What the library has: records, ends of partitions, errors. Empty when nothing came in time."""
        try:
            first = self._raw.poll(timeout_seconds)
            if first is None:
                return []
            messages = [first, *self._raw.consume(most - 1, 0)] if most > 1 else [first]
        except KafkaException as exception:
            raise self._errors.translated(exception, "reading") from exception
        error = first.error()
        if error is None or error.code() not in _passing:
            self._errors.is_disconnected = False
            self._refusals.heard()
        return messages

    def _records(self, messages: list[Any]) -> list[Record]:
        """The records among what came; ends of partitions move positions, an error is kept for the next poll."""
        records = []
        positions = self._positions
        for message in messages:
            error = message.error()
            place = (message.topic(), message.partition())
            if error is not None:
                self._hear(error, place, message.offset())
            elif place in positions:  # the library has moved on: what is not returned now is never seen
                offset = message.offset()
                positions[place] = offset + 1
                records.append(_record(message, place, offset))
        return records

    def _hear(self, error: KafkaError, place: tuple[str | None, int | None], offset: int | None) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001
            if place in self._positions and offset is not None:
                self._positions[place] = offset
        elif code in _passing:
            logger.debug("passing error while reading group=%s error=%s", self._group_id, error)
        elif code == KafkaError.GROUP_AUTHORIZATION_FAILED:
            self._commits.failed(error)  # nothing is read in the name of a group
        elif code in _gone:
            if place in self._positions:
                self._gone[place] = translated(error, _reading(place))
        elif self._failure is None:
            self._failure = _unreadable_batch(error, place) or translated(error, _reading(place))

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _offsets(self, partitions: Iterable[TopicPartition], at: int) -> dict[TopicPartition, int]:
        self._require_open()
        wanted = list(partitions)
        if not wanted:
            return {}
        for partition in wanted:
            self._directory.require(partition.topic, partition.partition)
        topics = sorted({partition.topic for partition in wanted})
        deadline = time.monotonic() + self._offsets_timeout_seconds
        while True:
            found = self._ask(wanted, at, max(0.001, deadline - time.monotonic()), topics)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise BrokerTimeout(
                    f"no offsets of {', '.join(topics)} within {self._offsets_timeout_seconds:g} s: check the "
                    "cluster's health"
                )
            self._refusals.silent()
            time.sleep(_retry_seconds)

    def _ask(
        self, wanted: list[TopicPartition], at: int, timeout_seconds: float, topics: Collection[str]
    ) -> dict[TopicPartition, int] | None:
        """Offsets of all, or None where the broker is away or some partition has no leader for the moment."""
        question = [ConfluentTopicPartition(place.topic, place.partition, at) for place in wanted]
        try:
            answer = self._refusals.during(lambda: self._raw.offsets_for_times(question, timeout_seconds))
        except KafkaException as exception:
            self._raise_unless_passing(exception.args[0], topics)
            return None
        for each in answer:
            if each.error is not None:
                self._raise_unless_passing(each.error, topics)
                return None
        found = {TopicPartition(each.topic, each.partition): each.offset for each in answer}
        return {place: found[place] for place in wanted}

    def _raise_unless_passing(self, error: KafkaError, topics: Collection[str]) -> None:
        if error.code() in _unknown_here:
            for topic in topics:
                self._find(topic)
        elif error.code() not in _passing:
            raise translated(error, f"asking for offsets of {', '.join(topics)}")

    def _find(self, topic: str) -> None:
        """Have the library know a topic again. Raises TopicMismatch where it is gone, and what says why it is not told.

        By itself the library would look again in five minutes: so long it believes a broker that, just started, had not
        read its own metadata yet and said that there is no such topic.
        """
        try:
            self._directory.confirm(topic)
            self._raw.list_topics(topic, _metadata_timeout_seconds)
        except (BrokerUnreachable, BrokerTimeout, KafkaException) as error:
            logger.debug("topic not found again topic=%s error=%s", topic, error)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError("this consumer is closed")


def _reading(place: tuple[str | None, int | None]) -> str:
    return f"reading {place[0]} partition {place[1]}"


def _unreadable_batch(error: KafkaError, place: tuple[str | None, int | None]) -> BrokerError | None:
    if error.code() not in _unreadable:
        return None
    remedy = 'set broker.client to "auto", which sets such a batch aside and reads on'
    return BrokerError(f"{_reading(place)}: {error.str()}; {remedy}")


def _record(message: Any, place: tuple[str, int], offset: int) -> Record:
    headers = message.headers()
    return Record(
        topic=place[0],
        partition=place[1],
        offset=offset,
        value=message.value(),
        key=message.key(),
        # A header without a value says no more than an empty one.
        headers=[(name, value or b"") for name, value in headers] if headers else [],
        timestamp_ms=message.timestamp()[1],
    )
