"""What became of a transaction, for partitions that were never told.

Apache Kafka 4 has a fault (KAFKA-20734, seen with 4.3.1): a coordinator that ends a transaction while a partition has
no leader, as for a moment after every start of a broker, takes the partition for deleted and leaves it out. The
transaction is over for the coordinator and open for the partition. Readers of committed records wait there for ever,
and the next transaction of the same producer decides what is open along with itself: aborted records are committed.

So whoever ends a transaction, or takes over from another producer, asks each partition, and tells it again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.admin import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from kafka.structs import TopicPartition as KafkaTopicPartition

_look_seconds = 0.005
_retry_seconds = 0.05
_complete = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
_committed = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
"""A commit is decided before the partitions are told: nothing undoes it from then on."""
_too_old = (kafka_errors.UnsupportedVersionError,)
"""A broker without these questions is older than the fault, too: there is nothing to do then."""


class Decisions:
    """Asks for and repeats what was decided about the transactions of one transactional id.

    `raw` is the kafka-python producer of that id, `admin` an admin client of its own, which `close` closes. Everything
    here raises kafka-python's errors.
    """

    def __init__(self, raw: Any, admin: Any, transactional_id: str) -> None:
        self._raw = raw
        self._admin = admin
        self._transactional_id = transactional_id

    def close(self) -> None:
        """Close the admin client."""
        self._admin.close()

    def committed_epoch(self, deadline: float) -> int | None:
        """The producer epoch of the newest transaction, if the coordinator has decided to commit it, else None."""
        found = self._described(deadline)
        if found is None or found.state not in _committed:
            return None
        return int(found.producer_epoch)

    def take_over(
        self, places: Collection[KafkaTopicPartition], *, committed_epoch: int | None, deadline: float
    ) -> None:
        """Decide what an earlier producer left open in `places`; it is fenced, and no transaction is open.

        It is committed if its transaction was (`committed_epoch`, asked for before it was fenced), else aborted.
        """
        for is_committed in (True, False):
            while found := {
                place
                for place, epoch in self._open_at(places, deadline).items()
                if (epoch == committed_epoch) is is_committed
            }:
                self._tell(found, is_committed=is_committed, deadline=deadline)
                self.await_decided(found, is_committed=is_committed, deadline=deadline)

    def await_decided(
        self, places: Collection[KafkaTopicPartition], *, is_committed: bool, deadline: float
    ) -> None:
        """Wait until every place knows how the newest transaction ended; tell those that were left out."""
        is_over = False
        while still_open := self._open_at(places, deadline):
            if is_over:  # for the coordinator, and was so before the places were asked: these were left out
                self._tell(still_open, is_committed=is_committed, deadline=deadline)
            found = self._described(deadline)
            is_over = found is not None and found.state in _complete
            _pause(deadline)

    def _tell(self, places: Iterable[KafkaTopicPartition], *, is_committed: bool, deadline: float) -> None:
        """End a transaction that has no records in these places: its end decides what is open there."""
        raw = self._raw
        manager = raw._transaction_manager  # noqa: SLF001 - the library adds a partition only with a record
        raw.begin_transaction()
        for place in places:
            manager.maybe_add_partition_to_transaction(place)
        while not all(manager.is_partition_added(place) for place in places):
            if manager.last_error is not None:
                raise manager.last_error
            raw._sender.wakeup()  # noqa: SLF001
            _pause(deadline)
        if is_committed:
            raw.commit_transaction()
        else:
            raw.abort_transaction()

    def _open_at(
        self, places: Collection[KafkaTopicPartition], deadline: float
    ) -> dict[KafkaTopicPartition, int]:
        """Where this producer has a transaction open, and under which epoch."""
        producer_id = self._raw._transaction_manager.producer_id_and_epoch.producer_id  # noqa: SLF001
        try:
            described = _asked(lambda: self._admin.describe_producers(places), deadline)
        except _too_old:
            return {}
        return {
            place: int(producer.producer_epoch)
            for place, state in described.items()
            for producer in state.active_producers
            if producer.producer_id == producer_id and producer.current_transaction_start_offset >= 0
        }

    def _described(self, deadline: float) -> Any:
        name = self._transactional_id
        try:
            return _asked(lambda: self._admin.describe_transactions([name]), deadline)[name]
        except (kafka_errors.TransactionalIdNotFoundError, *_too_old):
            return None


def _asked(question: Callable[[], Any], deadline: float) -> Any:
    """The answer, also where the broker is away for a moment or has not loaded it yet."""
    while True:
        try:
            return question()
        except kafka_errors.KafkaError as error:
            if not (error.retriable or isinstance(error, kafka_errors.KafkaTimeoutError)):
                raise
            if time.monotonic() > deadline:
                raise kafka_errors.KafkaTimeoutError(f"no answer in time: {error}") from error
        time.sleep(_retry_seconds)


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise kafka_errors.KafkaTimeoutError("some partitions do not know how a transaction ended")
    time.sleep(_look_seconds)
