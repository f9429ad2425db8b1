"""Any broker of the port, with the records of a run framed by a schema registry on the log.

Whoever uses it writes and reads single-object encoding, as without it; `wire_format` says what stands on the topics.

| read | becomes |
| --- | --- |
| wire format with the header `rollog-schema` | single-object encoding, without a question to the registry |
| wire format without it (another program's) | the same, once the registry has said which schema the id names |
| wire format, and the registry does not answer (soon) | held back: the partition stands still, the others go on |
| wire format with an id that no Avro schema has | itself: nobody can decode it, so its owner sets it aside |
| anything else | itself |

What is written becomes wire format where its schema has a subject on that topic, and stays as it is otherwise: the
register of runs, tombstones, bytes of a dead letter that are written again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import ConfigError, RegistryRefused, RegistryUnreachable
from rollog.kernel.lifecycle import Component
from rollog.kernel.logs import get_logger
from rollog.kernel.registry.wire_format import (
    fingerprint_of,
    named_fingerprint,
    schema_header,
    schema_id_of,
    with_fingerprint,
    with_schema_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rollog.kernel.broker.ports import (
        Admin,
        Broker,
        Consumer,
        Delivery,
        Headers,
        Producer,
        Record,
        TransactionalProducer,
    )
    from rollog.kernel.registry.schema_ids import SchemaIds

log = get_logger("registry")


class FramedBroker:
    """A broker around another. Without `ids` only records with the header `rollog-schema` can be read, none written.

    Its clients raise what the inner ones do. `send` raises RegistryUnreachable and RegistryRefused besides, where the
    id of a schema is not known yet; without `ids`, `send` and `poll` raise ConfigError where they need one.
    """

    def __init__(
        self, inner: Broker, ids: SchemaIds | None, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._inner = inner
        self.ids = ids
        self._sleep = sleep

    @property
    def address(self) -> str:
        """Where the inner broker is."""
        return self._inner.address

    @property
    def principal(self) -> str | None:
        """Who the inner broker's clients are."""
        return self._inner.principal

    def producer(self, *, client_id: str, max_in_flight_bytes: int = 64 << 20) -> FramedProducer:
        """An idempotent producer."""
        return FramedProducer(
            self._inner.producer(client_id=client_id, max_in_flight_bytes=max_in_flight_bytes), self.ids
        )

    def transactional_producer(
        self,
        transactional_id: str,
        *,
        topics: Sequence[str] = (),
        transaction_timeout_seconds: float = 15.0,
    ) -> FramedTransactionalProducer:
        """A transactional producer."""
        return FramedTransactionalProducer(
            self._inner.transactional_producer(
                transactional_id, topics=topics, transaction_timeout_seconds=transaction_timeout_seconds
            ),
            self.ids,
        )

    def consumer(self, *, client_id: str, group_id: str | None = None) -> FramedConsumer:
        """A consumer of committed records."""
        return FramedConsumer(
            self._inner.consumer(client_id=client_id, group_id=group_id), self.ids, self._sleep
        )

    def admin(self) -> Admin:
        """The inner broker's: topics have no framing."""
        return self._inner.admin()


class FramedProducer(Component):
    """An idempotent producer that writes schema ids."""

    def __init__(self, inner: Producer, ids: SchemaIds | None) -> None:
        self._inner = inner
        self._ids = ids

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Send one record, framed."""
        framed, named = _framed(self._ids, topic, value, headers)
        return self._inner.send(topic, partition, framed, key=key, headers=named)

    def flush(self, timeout_seconds: float) -> None:
        """Wait until every record sent so far is acknowledged."""
        self._inner.flush(timeout_seconds)

    def close(self) -> None:
        """Close the inner producer."""
        self._inner.close()


class FramedTransactionalProducer(Component):
    """A transactional producer that writes schema ids."""

    def __init__(self, inner: TransactionalProducer, ids: SchemaIds | None) -> None:
        self._inner = inner
        self._ids = ids

    def begin(self) -> None:
        """Open a transaction."""
        self._inner.begin()

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Send one record within the open transaction, framed."""
        framed, named = _framed(self._ids, topic, value, headers)
        return self._inner.send(topic, partition, framed, key=key, headers=named)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_id: str) -> None:
        """Commit consumer positions as part of the transaction."""
        self._inner.send_offsets(offsets, group_id)

    def commit(self, timeout_seconds: float) -> None:
        """Make everything sent since `begin` visible at once."""
        self._inner.commit(timeout_seconds)

    def abort(self) -> None:
        """Undo everything sent since `begin`."""
        self._inner.abort()

    def close(self) -> None:
        """Close the inner producer."""
        self._inner.close()


class FramedConsumer(Component):
    """A consumer that reads schema ids.

    A partition whose next record needs an answer that the registry does not give is taken out of the inner assignment
    until it may be asked again; its position stays at that record.

        assigned p0 @ 3, p1 @ 9; p0 has at 4 an id that the registry is away for
        poll -> p0's record 3, p1's 9 and 10; held: p0 @ 4; the inner consumer reads p1 alone
        poll -> p1's 11
        pause over: the inner consumer reads p0 @ 4, p1 @ 12; poll -> p0's 4, translated
    """

    def __init__(self, inner: Consumer, ids: SchemaIds | None, sleep: Callable[[float], None]) -> None:
        self._inner = inner
        self._ids = ids
        self._sleep = sleep
        self._assigned: set[TopicPartition] = set()
        self._held: dict[TopicPartition, int] = {}
        self._cause: RegistryUnreachable | RegistryRefused | None = None

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from these offsets on."""
        self._inner.assign(positions)
        self._assigned = set(positions)
        self._held = {}

    def poll(self, timeout_seconds: float, max_records: int | None = None) -> list[Record]:
        """Records in offset order per partition, in single-object encoding."""
        if self._held and self._ids is not None and self._ids.may_ask():
            self._inner.assign({place: self.position(place) for place in self._assigned})
            self._held = {}
        if self._held and len(self._held) == len(self._assigned):
            self._sleep(timeout_seconds)
            return []
        num_held = len(self._held)
        found = [
            read
            for record in self._inner.poll(timeout_seconds, max_records)
            if (read := self._read(record)) is not None
        ]
        if len(self._held) > num_held:
            free = self._assigned - self._held.keys()
            self._inner.assign({place: self._inner.position(place) for place in free})
        return found

    def held_back(self) -> RegistryUnreachable | RegistryRefused | None:
        """Why a partition stands still; None where none does."""
        return self._cause if self._held else None

    def position(self, partition: TopicPartition) -> int:
        """Next offset this consumer would return."""
        held = self._held.get(partition)
        return self._inner.position(partition) if held is None else held

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Smallest offsets that can still be read."""
        return self._inner.beginning_offsets(partitions)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets, fetched now."""
        return self._inner.end_offsets(partitions)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit positions under the group id."""
        self._inner.commit(offsets)

    def close(self) -> None:
        """Close the inner consumer."""
        self._inner.close()

    def _read(self, record: Record) -> Record | None:
        """The record as whoever polls sees it; None where its partition is held back."""
        if self._held and TopicPartition(record.topic, record.partition) in self._held:
            return None
        schema_id = schema_id_of(record.value)
        if schema_id is None:
            return record
        fingerprint = named_fingerprint(record.headers)
        if fingerprint is not None:
            return with_fingerprint(record, fingerprint)
        if self._ids is None:
            raise ConfigError(
                f"{record.topic}, partition {record.partition}, offset {record.offset} names its schema by id "
                f"{schema_id} alone: say where the schema registry of the run is with registry.url"
            )
        try:
            fingerprint = self._ids.fingerprint_of(schema_id)
        except (RegistryUnreachable, RegistryRefused) as error:
            log.warning(
                "partition held back until the schema registry answers",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                schema_id=schema_id,
                error=error,
            )
            self._held[TopicPartition(record.topic, record.partition)] = record.offset
            self._cause = error
            return None
        return record if fingerprint is None else with_fingerprint(record, fingerprint)


def _framed(
    ids: SchemaIds | None, topic: str, value: bytes | None, headers: Headers
) -> tuple[bytes | None, Headers]:
    """Value and headers as they stand on the log."""
    fingerprint = fingerprint_of(value)
    if value is None or fingerprint is None:
        return value, headers
    if ids is None:
        raise ConfigError(
            f"a record for {topic} cannot be written: say where the schema registry of the run is with registry.url"
        )
    schema_id = ids.id_on(topic, fingerprint)
    if schema_id is None:
        return value, headers
    return with_schema_id(value, schema_id), [*headers, (schema_header, fingerprint)]
