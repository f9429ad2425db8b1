"""A log broker in memory, for tests and for several roles as threads of one process.

It keeps the promises of `rollog.kernel.broker.ports` as Apache Kafka does: transaction markers take offsets, an open
transaction holds back everything after its first record, a newer producer of a transactional id fences the older.
Compaction and deletion by age do not happen. Nothing survives the process.

`pause` makes it fall silent as a stopped broker would: sends stay in flight, commits time out with an unknown
outcome, polls return nothing, questions (offsets, topics, a new transactional producer) wait for at most
`block_seconds` and raise BrokerTimeout; `resume` carries out what was asked meanwhile, in order.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.kernel.broker.limits import default_record_limit_bytes
from rollog.kernel.broker.memory_log import Log, Transaction
from rollog.kernel.broker.memory_producers import MemoryProducer, MemoryTransactionalProducer
from rollog.kernel.broker.memory_readers import MemoryAdmin, MemoryConsumer
from rollog.kernel.errors import BrokerTimeout, ProducerFenced, TopicMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollog.kernel.broker.ports import TopicPartition, TopicSpec


@dataclass(slots=True)
class MemoryTopic:
    """A topic with its partitions."""

    spec: TopicSpec
    logs: list[Log]

    @property
    def record_limit_bytes(self) -> int:
        """Largest record it takes."""
        return int(self.spec.config.get("max.message.bytes", default_record_limit_bytes))


@dataclass(slots=True)
class _Identity:
    """One transactional id: who holds it now, and the open transaction."""

    epoch: int = 0
    transaction: Transaction | None = None


@dataclass(slots=True)
class _Requests:
    """What was asked of a paused broker."""

    is_paused: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)


class MemoryBroker:
    """One broker in memory; its clients may live in different threads, each in one."""

    def __init__(self, address: str = "memory", *, block_seconds: float = 120.0) -> None:
        self._address = address
        self._block_seconds = block_seconds
        self._identities: dict[str, _Identity] = {}
        self._requests = _Requests()
        self.condition = threading.Condition()
        """Guards everything; notified at every change."""
        self.topics: dict[str, MemoryTopic] = {}
        self.committed_offsets: dict[str, dict[TopicPartition, int]] = {}
        """Per group, the positions that ordinary tools would see."""

    @property
    def address(self) -> str:
        """The name it was given."""
        return self._address

    @property
    def principal(self) -> str | None:
        """Nobody: everybody may do everything here."""
        return None

    def producer(self, *, client_id: str, max_in_flight_bytes: int = 64 << 20) -> MemoryProducer:
        """An idempotent producer."""
        del client_id
        return MemoryProducer(
            self, max_in_flight_bytes=max_in_flight_bytes, block_seconds=self._block_seconds
        )

    def transactional_producer(
        self,
        transactional_id: str,
        *,
        topics: Sequence[str] = (),
        transaction_timeout_seconds: float = 15.0,
    ) -> MemoryTransactionalProducer:
        """A transactional producer; earlier ones of this id are fenced, what they left undecided aborted."""
        del topics, transaction_timeout_seconds
        self.require_answer(f"taking over transactional id {transactional_id}")
        with self.condition:
            identity = self._identities.setdefault(transactional_id, _Identity())
            identity.epoch += 1
            self._settle(identity, is_committed=False)
            return MemoryTransactionalProducer(
                self, transactional_id, identity.epoch, block_seconds=self._block_seconds
            )

    def consumer(self, *, client_id: str, group_id: str | None = None) -> MemoryConsumer:
        """A consumer of committed records; `group_id` only names the offsets it commits."""
        del client_id
        return MemoryConsumer(self, group_id)

    def admin(self) -> MemoryAdmin:
        """Administration of topics."""
        return MemoryAdmin(self)

    def pause(self) -> None:
        """Fall silent until `resume`."""
        with self.condition:
            self._requests.is_paused = True

    def resume(self) -> None:
        """Carry out, in order, what was asked since `pause`, and answer again."""
        with self.condition:
            self._requests.is_paused = False
            waiting, self._requests.waiting = self._requests.waiting, []
            for request in waiting:
                request()
            self.condition.notify_all()

    @property
    def is_paused(self) -> bool:
        """Whether it is silent."""
        return self._requests.is_paused

    def expire_transaction(self, transactional_id: str) -> None:
        """Do what Kafka does when a transaction has been open for too long: abort it and fence its producer."""
        with self.condition:
            identity = self._identities[transactional_id]
            identity.epoch += 1
            self._settle(identity, is_committed=False)

    def request(self, action: Callable[[], None]) -> None:
        """Carry out `action` under the lock, now or when the broker is no longer paused."""
        with self.condition:
            if self._requests.is_paused:
                self._requests.waiting.append(action)
            else:
                action()
                self.condition.notify_all()

    def require_answer(self, place: str) -> None:
        """Wait until the broker is not paused. Raises BrokerTimeout, naming `place`, after `block_seconds`."""
        if not self.wait_for(lambda: not self._requests.is_paused, self._block_seconds):
            raise BrokerTimeout(
                f"{place}: no answer from {self._address} within {self._block_seconds:g} s: is the broker running?"
            )

    def wait_for(self, is_met: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait until something holds; must not be called with the lock held."""
        deadline = time.monotonic() + timeout_seconds
        with self.condition:
            return self.condition.wait_for(is_met, max(0.0, deadline - time.monotonic()))

    def add_topic(self, spec: TopicSpec) -> None:
        """Bring a topic into being, empty."""
        logs = [Log(spec.name, partition) for partition in range(spec.num_partitions)]
        self.topics[spec.name] = MemoryTopic(spec, logs)

    def topic(self, name: str) -> MemoryTopic:
        """Raises TopicMismatch when there is none of that name."""
        if name not in self.topics:
            raise TopicMismatch(f"topic {name} does not exist: create it with `rollog topics create`")
        return self.topics[name]

    def log(self, topic: str, partition: int) -> Log:
        """Raises TopicMismatch when there is no such partition."""
        logs = self.topic(topic).logs
        if not 0 <= partition < len(logs):
            raise TopicMismatch(
                f"topic {topic} has partitions 0 to {len(logs) - 1}, not {partition}:"
                " check that the configuration is that of the run"
            )
        return logs[partition]

    def open_transaction(self, transactional_id: str, epoch: int) -> Transaction:
        """The open transaction of a producer, begun if need be. Raises ProducerFenced for an older producer."""
        identity = self.holder(transactional_id, epoch)
        if identity.transaction is None:
            identity.transaction = Transaction()
        return identity.transaction

    def settle_transaction(self, transactional_id: str, epoch: int, *, is_committed: bool) -> None:
        """Commit or abort. Raises ProducerFenced for an older producer."""
        self._settle(self.holder(transactional_id, epoch), is_committed=is_committed)

    def holder(self, transactional_id: str, epoch: int) -> _Identity:
        """Raises ProducerFenced unless the producer of that epoch is the newest of its id."""
        identity = self._identities[transactional_id]
        if identity.epoch != epoch:
            raise ProducerFenced(
                f"transactional id {transactional_id}: another process has taken it over, or the transaction"
                " stayed open longer than its time-out: this process must end"
            )
        return identity

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Make positions of a group visible."""
        self.committed_offsets.setdefault(group_id, {}).update(offsets)

    def _settle(self, identity: _Identity, *, is_committed: bool) -> None:
        transaction, identity.transaction = identity.transaction, None
        if transaction is None:
            return
        transaction.settle(is_committed=is_committed)
        if is_committed:
            for group_id, offsets in transaction.offsets.items():
                self.commit_offsets(group_id, offsets)
        self.condition.notify_all()
