"""A transaction coordinator and its partitions, which may not be told how a transaction ended (KAFKA-20734).

Only what `Decisions` asks and tells: one transactional id, one producer id, epochs as Apache Kafka counts them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors
from kafka.admin import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from kafka.structs import TopicPartition as KafkaTopicPartition

_producer_id = 7
_prepared = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


class Death(Exception):
    """The process that asked has died."""


@dataclass(frozen=True)
class _Opened:
    epoch: int
    start_offset: int
    names: list[str] = field(default_factory=list)


class ForgetfulKafka:
    """One coordinator, with partitions that hold names of transactions.

    `is_left_out(place)` says whether the end of a transaction skips a place; `is_slow()` whether the places are told
    at a later request only; `dies()` whether the client dies at a request, asked once before it and once after it;
    `has_no_leader()` whether a place cannot be asked for the moment. `beside` is called before each request: what a
    client does that is not fenced yet.
    """

    def __init__(
        self,
        *,
        is_left_out: Callable[[KafkaTopicPartition], bool],
        is_slow: Callable[[], bool],
        dies: Callable[[], bool],
        has_no_leader: Callable[[], bool] = lambda: False,
    ) -> None:
        self.is_left_out = is_left_out
        self.is_slow = is_slow
        self.dies = dies
        self.has_no_leader = has_no_leader
        self.beside: Callable[[], None] = lambda: None
        self.epoch = -1
        self.state = TransactionState.EMPTY
        self.fates: dict[str, dict[KafkaTopicPartition, bool]] = defaultdict(dict)
        """What each place was told of each transaction, by name: whether it is committed."""
        self._added: set[KafkaTopicPartition] = set()
        self._open: dict[KafkaTopicPartition, _Opened] = {}
        self._num_written = 0

    @property
    def open_places(self) -> set[KafkaTopicPartition]:
        """Places at which a transaction has begun whose end they do not know."""
        return set(self._open)

    @property
    def half_committed(self) -> set[str]:
        """Transactions that are committed at some places and open at others."""
        still_open = {name for opened in self._open.values() for name in opened.names}
        return {name for name in still_open if True in self.fates[name].values()}

    def request(self, act: Callable[[], object] = lambda: None) -> None:
        """What the client asks for; it may die before and after, and slow markers may be written before."""
        if self.dies():
            raise Death
        self.beside()
        if self.state in _prepared and not self.is_slow():
            self._mark()
        act()
        if self.dies():
            raise Death

    def initialise(self) -> None:
        """Fence: abort what is open, and start a new epoch."""
        if self.state is TransactionState.ONGOING:
            self.epoch += 1
            self.state = TransactionState.PREPARE_ABORT
        if self.state in _prepared:
            self._mark()
        self.epoch += 1
        self.state = TransactionState.EMPTY
        self.beside = lambda: None
        self._added = set()

    def add(self, places: Iterable[KafkaTopicPartition], epoch: int, name: str | None = None) -> None:
        """Take places into the transaction, and with `name` write a record of that name there."""
        self._require(epoch)
        self._added.update(places)
        self.state = TransactionState.ONGOING
        for place in places if name is not None else ():
            assert name is not None
            self._open.setdefault(place, _Opened(epoch, self._num_written)).names.append(name)
            self._num_written += 1

    def end(self, epoch: int, *, is_committed: bool, is_told_all: bool = False) -> None:
        """Decide the transaction; its places are told now or later, or all of them now."""
        self._require(epoch)
        self.state = TransactionState.PREPARE_COMMIT if is_committed else TransactionState.PREPARE_ABORT
        if is_told_all or not self.is_slow():
            self._mark(is_told_all=is_told_all)

    def active(self, place: KafkaTopicPartition) -> list[SimpleNamespace]:
        """Who has a transaction open at a place: this producer or nobody."""
        found = self._open.get(place)
        if found is None:
            return []
        return [
            SimpleNamespace(
                producer_id=_producer_id,
                producer_epoch=found.epoch,
                current_transaction_start_offset=found.start_offset,
            )
        ]

    def _require(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise kafka_errors.ProducerFencedError(f"epoch {epoch}")
        if self.state in _prepared:
            self._mark()  # the broker answers "concurrent transactions", and the client asks again

    def _mark(self, *, is_told_all: bool = False) -> None:
        is_committed = self.state is TransactionState.PREPARE_COMMIT
        for place in self._added:
            if place in self._open and (is_told_all or not self.is_left_out(place)):
                for name in self._open.pop(place).names:
                    self.fates[name][place] = is_committed
        self._added = set()
        self.state = _prepared[self.state]


class ForgottenProducer:
    """kafka-python's transactional producer, as far as `Decisions` uses it, and one call that writes."""

    def __init__(self, kafka: ForgetfulKafka) -> None:
        self._kafka = kafka
        self._epoch = -1
        self._new: set[KafkaTopicPartition] = set()
        self._transaction_manager = SimpleNamespace(
            last_error=None,
            producer_id_and_epoch=SimpleNamespace(producer_id=_producer_id),
            maybe_add_partition_to_transaction=self._new.add,
            is_partition_added=lambda place: place not in self._new,
        )
        self._sender = SimpleNamespace(wakeup=self._add)

    def init_transactions(self) -> None:
        """Take a new epoch."""

        def initialise() -> None:
            self._kafka.initialise()
            self._epoch = self._kafka.epoch

        self._kafka.request(initialise)

    def begin_transaction(self) -> None:
        """Nothing is sent."""

    def write(self, name: str, places: Collection[KafkaTopicPartition]) -> None:
        """Write a record of the transaction `name` at each place."""
        for place in sorted(places):
            self._kafka.request(lambda place=place: self._kafka.add([place], self._epoch, name))  # type: ignore[misc]

    def commit_transaction(self) -> None:
        """Ask for a commit."""
        self._kafka.request(lambda: self._kafka.end(self._epoch, is_committed=True))

    def abort_transaction(self) -> None:
        """Ask for an abort."""
        self._kafka.request(lambda: self._kafka.end(self._epoch, is_committed=False))

    def _add(self) -> None:
        self._kafka.request(lambda: self._kafka.add(self._new, self._epoch))
        self._new.clear()


class ForgetfulAdmin:
    """kafka-python's admin client, as far as `Decisions` uses it."""

    def __init__(self, kafka: ForgetfulKafka) -> None:
        self._kafka = kafka
        self._manager = SimpleNamespace(cluster=SimpleNamespace(_coordinators={}))

    def close(self) -> None:
        """Nothing is held."""

    def describe_transactions(self, names: list[str]) -> dict[str, object]:
        """State and epoch of the one transactional id."""
        self._kafka.request()
        if self._kafka.epoch < 0:
            raise kafka_errors.TransactionalIdNotFoundError(names[0])
        found = SimpleNamespace(
            state=self._kafka.state, producer_id=_producer_id, producer_epoch=self._kafka.epoch
        )
        return dict.fromkeys(names, found)

    def describe_producers(
        self, places: Collection[KafkaTopicPartition]
    ) -> dict[KafkaTopicPartition, SimpleNamespace]:
        """Who has a transaction open at each place."""
        self._kafka.request()
        if self._kafka.has_no_leader():
            raise kafka_errors.UnknownBrokerIdError
        return {place: SimpleNamespace(active_producers=self._kafka.active(place)) for place in places}
