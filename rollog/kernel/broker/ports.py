"""What rollog needs of a log broker, and nothing more.

Two implementations keep these promises and pass one contract suite: `rollog.kernel.broker.kafka` (kafka-python) and
`rollog.kernel.broker.memory`. Partitions are always explicit. None of the objects may be shared between threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType

    from rollog.kernel.broker.rights import Right

Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A stored batch, or record, that is not read: it inflates beyond all bounds or is not what it says it is.

    `num_bytes` as stored; `reason` names size and digest, too.
    """

    num_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as read. `value` None is a tombstone; `timestamp_ms` is the broker's append time.

    With `unread` it stands for a batch that could not be read, at the batch's last offset, or for a record that could
    not, and has nothing else.
    """

    topic: str
    partition: int
    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = 0
    unread: Unread | None = None

    def header(self, name: str) -> bytes | None:
        """The last header of that name, or None."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic as it should exist. `config` holds Kafka topic settings by their Kafka names."""

    name: str
    num_partitions: int
    replication_factor: int = 1
    config: Mapping[str, str] = field(default_factory=dict)


class Delivery(Protocol):
    """The fate of one sent record."""

    def done(self) -> bool:
        """Whether the outcome is known."""
        ...

    def offset(self, timeout_seconds: float) -> int:
        """Wait for the acknowledgement and return the record's offset.

        Raises RecordTooLarge, BrokerTimeout, ProducerFenced or BrokerError.
        """
        ...


class _Closing(Protocol):
    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Producer(_Closing, Protocol):
    """An idempotent producer: no loss and no double under retries, order kept per partition.

    `send` blocks while more than the configured bytes are in flight (BrokerTimeout after the bound). A record
    that failed after its delivery time-out makes every later call raise that failure: the producer is discarded.
    """

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Send one record; value None, a tombstone, needs a key.

        Raises TopicMismatch for a topic or partition that does not exist, ValueError after `close`. A record over
        the topic's limit is not sent: its delivery raises RecordTooLarge, the producer stays usable.
        """
        ...

    def flush(self, timeout_seconds: float) -> None:
        """Wait until every record sent so far is acknowledged; raises the first failure."""
        ...


class TransactionalProducer(_Closing, Protocol):
    """All or nothing. Creating one fences every earlier producer of the same transactional id.

    `commit` waits for every delivery first and aborts if one failed; a time-out during the commit itself
    raises BrokerTimeout (outcome unknown). ProducerFenced is final.
    """

    def begin(self) -> None:
        """Open a transaction."""
        ...

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Send one record within the open transaction; raises as `Producer.send`."""
        ...

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_id: str) -> None:
        """Commit consumer positions for `group_id` as part of the transaction."""
        ...

    def commit(self, timeout_seconds: float) -> None:
        """Make everything sent since `begin` visible at once; raises as the class says."""
        ...

    def abort(self) -> None:
        """Undo everything sent since `begin`; does nothing when no transaction is open."""
        ...


class Consumer(_Closing, Protocol):
    """Reads manually assigned partitions, read_committed, from given offsets."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from these offsets on.

        Replaces what was assigned before, while partitions that stay assigned at the position they already have keep
        their buffered records. Raises TopicMismatch for a topic or partition that does not exist.
        """
        ...

    def poll(self, timeout_seconds: float, max_records: int | None = None) -> list[Record]:
        """Records in offset order per partition; an empty list when none came in time."""
        ...

    def position(self, partition: TopicPartition) -> int:
        """Next offset this consumer would return (moves past transaction markers)."""
        ...

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Smallest offsets that can still be read."""
        ...

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets, fetched now: everything before them is committed or aborted.

        A `position` that has reached one has seen all committed records before it, transaction markers included.
        """
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit positions under the group id, for ordinary tools to see; best effort, never blocks.

        `close` waits for the newest ones, for a moment.
        """
        ...


class Admin(_Closing, Protocol):
    """Topics of the cluster."""

    def create_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Create those that are missing; returns the names created. Existing ones are left alone."""
        ...

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        """What exists of `names`, with the settings named in rollog's own specs.

        Raises NotAuthorized for topics that this client may not see: whether they exist is not told.
        """
        ...

    def list_topics(self) -> list[str]:
        """Names of all topics but the broker's own."""
        ...

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete those of `names` that exist, with all their records."""
        ...

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete the records below these offsets, for good; they become the beginning offsets.

        Offsets below the beginning change nothing. Raises TopicMismatch for what does not exist, BrokerError for an
        offset beyond the end.
        """
        ...

    def missing_rights(self, rights: Sequence[Right]) -> list[Right]:
        """Those of `rights`, none of a prefix, that this client does not have as far as the broker tells.

        Nothing is changed by asking. What the broker does not tell counts as granted.
        """
        ...

    def broker_version(self) -> str:
        """Version of the broker as far as it tells (for example `4.3.1`), else `unknown`."""
        ...


class Broker(Protocol):
    """Where producers, consumers and the admin come from. Raises BrokerUnreachable, naming the address."""

    @property
    def address(self) -> str:
        """Where it is, as given."""
        ...

    @property
    def principal(self) -> str | None:
        """Who its clients are to the cluster, for example `User:ada`; None where only the cluster knows."""
        ...

    def producer(self, *, client_id: str, max_in_flight_bytes: int = 64 << 20) -> Producer:
        """An idempotent producer."""
        ...

    def transactional_producer(
        self,
        transactional_id: str,
        *,
        topics: Sequence[str] = (),
        transaction_timeout_seconds: float = 15.0,
    ) -> TransactionalProducer:
        """A transactional producer; earlier ones of this id are fenced, what they left undecided aborted.

        `topics` are all that transactions of this id write: on return nothing of an earlier one is undecided there.
        """
        ...

    def consumer(self, *, client_id: str, group_id: str | None = None) -> Consumer:
        """A consumer of committed records; `group_id` only names the offsets it commits."""
        ...

    def admin(self) -> Admin:
        """Administration of topics."""
        ...
