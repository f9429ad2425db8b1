"""The consumer over kafka-python: manual assignment, committed records only."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition

from rollog.kernel.broker.bounded_batches import UnreadMark, read_batches_bounded
from rollog.kernel.broker.kafka_errors import translated, translating
from rollog.kernel.broker.ports import Record, TopicPartition
from rollog.kernel.errors import BrokerTimeout
from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rollog.kernel.broker.kafka_topics import TopicDirectory
    from rollog.kernel.broker.refusal_watch import RefusalWatch

logger = logging.getLogger(__name__)

_close_timeout_seconds = 1.0
_metadata_seconds = 0.02


class KafkaConsumer(Component):
    """Reads assigned partitions from given offsets; an outage of the broker is a poll that returns nothing."""

    def __init__(
        self,
        raw: Any,
        directory: TopicDirectory,
        group_id: str | None,
        *,
        offsets_timeout_seconds: float,
        refusals: RefusalWatch,
    ) -> None:
        read_batches_bounded()
        self._raw = raw
        self._directory = directory
        self._group_id = group_id
        self._committed: dict[Any, OffsetAndMetadata] = {}
        self._has_told_refusal = False
        self._offsets_timeout_seconds = offsets_timeout_seconds
        self._refusals = refusals
        self._is_closed = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from these offsets on; see `rollog.kernel.broker.ports.Consumer`."""
        self._require_open()
        for partition in positions:
            self._directory.require(partition.topic, partition.partition)
        kept = self._raw.assignment()
        wanted = {_foreign(partition): offset for partition, offset in positions.items()}
        with translating("assigning partitions"):
            self._raw.assign(list(wanted))
            for partition, offset in wanted.items():
                if partition not in kept or self._position(partition) != offset:
                    self._raw.seek(partition, offset)

    def poll(self, timeout_seconds: float, max_records: int | None = None) -> list[Record]:
        """Records in offset order per partition; an empty list when none came in time.

        Raises BrokerRefused where the broker is there and has not let this consumer in again.
        """
        self._require_open()
        with translating("reading"):
            batches = self._raw.poll(timeout_ms=timeout_seconds * 1000, max_records=max_records)
        if not batches:
            self._watch()
        return [_record(raw) for batch in batches.values() for raw in batch]

    def position(self, partition: TopicPartition) -> int:
        """Next offset this consumer would return; it moves past transaction markers as they are read."""
        self._require_open()
        foreign = _foreign(partition)
        if foreign not in self._raw.assignment():
            raise ValueError(f"{partition.topic} partition {partition.partition} is not assigned")
        return self._position(foreign)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Smallest offsets that can still be read."""
        return self._offsets(partitions, self._raw.beginning_offsets)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets, fetched now."""
        return self._offsets(partitions, self._raw.end_offsets)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit positions under the group id, in the background; a failure is logged and forgotten."""
        self._require_open()
        if self._group_id is None:
            raise ValueError("this consumer has no group id to commit under")
        foreign = {_foreign(p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}
        self._committed |= foreign
        try:
            self._raw.commit_async(foreign, callback=self._log_failed_commit)
        except kafka_errors.KafkaError as error:
            logger.debug("offsets not committed group=%s error=%r", self._group_id, error)

    def close(self) -> None:
        """End the connection. The newest positions are committed once more, because closing drops what is under way."""
        if not self._is_closed:
            self._is_closed = True
            self._commit_last()
            self._raw.close(autocommit=False, timeout_ms=round(_close_timeout_seconds * 1000))

    def _offsets(self, partitions: Iterable[TopicPartition], ask: Any) -> dict[TopicPartition, int]:
        self._require_open()
        wanted = {_foreign(partition): partition for partition in partitions}
        if not wanted:
            return {}
        for partition in wanted.values():
            self._directory.require(partition.topic, partition.partition)
        names = ", ".join(sorted({partition.topic for partition in wanted}))
        deadline = time.monotonic() + self._offsets_timeout_seconds
        while True:
            seconds = max(0.0, deadline - time.monotonic())
            complete = partial(_complete, ask, list(wanted), seconds)
            found = self._refusals.during(translating(f"asking for offsets of {names}")(complete))
            if found is not None:
                return {ours: found[foreign] for foreign, ours in wanted.items()}
            if time.monotonic() > deadline:
                raise BrokerTimeout(
                    f"no leader known for some partition of {names} within {self._offsets_timeout_seconds:g} s: "
                    "check the cluster's health"
                )
            time.sleep(_metadata_seconds)

    def _commit_last(self) -> None:
        if not self._committed:
            return
        try:
            self._raw.commit(self._committed, timeout_ms=round(_close_timeout_seconds * 1000))
        except kafka_errors.KafkaError as error:
            logger.debug("offsets not committed group=%s error=%r", self._group_id, error)

    def _log_failed_commit(self, offsets: object, answer: object) -> None:
        if not isinstance(answer, Exception):
            return
        if isinstance(answer, kafka_errors.AuthorizationError) and not self._has_told_refusal:
            self._has_told_refusal = True
            logger.warning("%s", translated(answer, f"committing offsets under group {self._group_id}"))
        logger.debug("offsets not committed offsets=%s error=%r", offsets, answer)

    def _position(self, partition: Any) -> int:
        # The library's own position() goes to its network thread and back for what is known here.
        return int(self._raw._subscription.position(partition).offset)  # noqa: SLF001

    def _watch(self) -> None:
        connections = list(self._raw._client._manager._conns.values())  # noqa: SLF001 - not offered otherwise
        if any(each.connected for each in connections):
            self._refusals.heard()
        else:
            self._refusals.silent()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError("this consumer is closed")


def _record(raw: Any) -> Record:
    mark = raw.headers[0][0] if raw.headers else None
    unread = mark.unread if isinstance(mark, UnreadMark) else None
    return Record(
        topic=raw.topic,
        partition=raw.partition,
        offset=raw.offset,
        value=raw.value,
        key=raw.key,
        # A header without a value says no more than an empty one.
        headers=[] if unread else [(name, value or b"") for name, value in raw.headers],
        timestamp_ms=raw.timestamp,
        unread=unread,
    )


def _foreign(partition: TopicPartition) -> Any:
    return KafkaTopicPartition(partition.topic, partition.partition)


def _complete(ask: Any, partitions: list[Any], timeout_seconds: float) -> Any:
    """All offsets, or None where the library leaves partitions out whose leader it does not know yet.

    It has then asked for their metadata and trips over the gap with a KeyError.
    """
    try:
        found = ask(partitions, timeout_ms=round(timeout_seconds * 1000))
    except KeyError:
        return None
    return found if len(found) == len(partitions) else None
