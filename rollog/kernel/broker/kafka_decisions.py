"""What became of a transaction, for partitions that were never told.

Apache Kafka 4 has a fault (KAFKA-20734, seen with 4.3.1): a coordinator that ends a transaction while a partition has
no leader, as for a moment after every start of a broker, takes the partition for deleted and leaves it out. The
transaction is over for the coordinator and open for the partition. Readers of committed records wait there for ever,
and the next transaction of the same producer decides what is open along with itself: aborted records are committed.

So whoever ends a transaction, or takes over from another producer, asks each partition, and tells it again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import kafka.errors as kafka_errors
from kafka.admin import TransactionState
from kafka.producer.transaction_manager import ProducerIdAndEpoch
from kafka.producer.transaction_manager import TransactionState as ProducerState

from rollog.kernel.broker.kafka_producer import end_raw_producer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from kafka.structs import TopicPartition as KafkaTopicPartition

    Places = Collection[KafkaTopicPartition]
    KnownOffsets = dict[KafkaTopicPartition, int]

_look_seconds = 0.005
_retry_seconds = 0.05
_complete = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
_committed = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
"""A commit is decided before the partitions are told: nothing undoes it from then on."""
_too_old = (kafka_errors.UnsupportedVersionError,)
"""A broker without these questions is older than the fault, too: there is nothing to do then."""
_passing = (kafka_errors.KafkaTimeoutError, kafka_errors.UnknownBrokerIdError)
"""The last is what the library says of a partition that has no leader for a moment."""


class OpenTransaction(NamedTuple):
    """A transaction whose end a partition does not know, by the offset at which it began there."""

    place: KafkaTopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int


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

    def await_group(self, group_id: str, deadline: float) -> None:
        """Wait until a broker coordinates a consumer group. A new cluster makes the topic for that when first asked."""
        self._asked(lambda: self._admin.list_group_offsets({group_id: None}), deadline)

    def is_open(self, places: Places, producer_id: int, deadline: float) -> bool:
        """Whether a transaction of that producer is open in one of these places."""
        return any(each.producer_id == producer_id for each in self._open_at(places, deadline))

    def committed_yet_open(self, places: Places, deadline: float) -> frozenset[OpenTransaction]:
        """What is open of a transaction that the coordinator has decided to commit; ask it before the fence.

        Once it has fenced a producer, the coordinator has forgotten. Places come first, the coordinator second: a
        producer at work begins nothing while a transaction of its own is open anywhere, so what was open before the
        answer and is still open after the fence, from the same offset on, is what the answer was about.
        """
        found = self._open_at(places, deadline)
        described = self._described(deadline)
        if described is None or described.state not in _committed:
            return frozenset()
        producer = (described.producer_id, described.producer_epoch)
        return frozenset(each for each in found if (each.producer_id, each.producer_epoch) == producer)

    def take_over(self, places: Places, *, committed: frozenset[OpenTransaction], deadline: float) -> None:
        """Decide what an earlier producer left open in `places`; it is fenced, and no transaction is open.

        What `committed_yet_open` said before it was fenced is committed, the rest aborted.
        """
        for is_committed in (True, False):
            while found := {
                each.place for each in self._own_at(places, deadline) if (each in committed) is is_committed
            }:
                self._tell(found, is_committed=is_committed, deadline=deadline)
                self.await_decided(found, is_committed=is_committed, deadline=deadline)

    def await_decided(self, places: Places, *, is_committed: bool, deadline: float) -> None:
        """Wait until every place knows how the newest transaction ended; tell those that were left out."""
        is_over = False
        while still_open := {each.place for each in self._own_at(places, deadline)}:
            if is_over:  # for the coordinator, and was so before the places were asked: these were left out
                self._tell(still_open, is_committed=is_committed, deadline=deadline)
            found = self._described(deadline)
            is_over = found is not None and found.state in _complete
            _pause(deadline)

    def _tell(self, places: Iterable[KafkaTopicPartition], *, is_committed: bool, deadline: float) -> None:
        """End a transaction that has no records in these places: its end decides what is open there."""
        self._end_empty(self._raw, places, is_committed=is_committed, deadline=deadline)

    def _end_empty(
        self, raw: Any, places: Iterable[KafkaTopicPartition], *, is_committed: bool, deadline: float
    ) -> None:
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

    def _own_at(self, places: Places, deadline: float) -> frozenset[OpenTransaction]:
        own = self._raw._transaction_manager.producer_id_and_epoch.producer_id  # noqa: SLF001
        return frozenset(each for each in self._open_at(places, deadline) if each.producer_id == own)

    def _open_at(self, places: Places, deadline: float) -> frozenset[OpenTransaction]:
        """What is open in these places, of any producer."""
        try:
            described = self._asked(lambda: self._admin.describe_producers(places), deadline)
        except _too_old:
            return frozenset()
        return frozenset(
            OpenTransaction(
                place, each.producer_id, each.producer_epoch, each.current_transaction_start_offset
            )
            for place, state in described.items()
            for each in state.active_producers
            if each.current_transaction_start_offset >= 0
        )

    def _described(self, deadline: float) -> Any:
        name = self._transactional_id
        try:
            return self._asked(lambda: self._admin.describe_transactions([name]), deadline)[name]
        except (kafka_errors.TransactionalIdNotFoundError, *_too_old):
            return None

    def _asked(self, question: Callable[[], Any], deadline: float) -> Any:
        """The answer, also where the broker is away for a moment or has not loaded it yet."""
        while True:
            try:
                return question()
            except kafka_errors.KafkaError as error:
                if not (error.retriable or isinstance(error, _passing)):
                    raise
                if time.monotonic() > deadline:
                    raise kafka_errors.KafkaTimeoutError(f"no answer in time: {error}") from error
            # The library never asks again which broker coordinates an id.
            self._admin._manager.cluster._coordinators.clear()  # noqa: SLF001
            time.sleep(_retry_seconds)


class DecisionsInName(Decisions):
    """Those of a producer that is not kafka-python's, and whose id and epoch are not known.

    Its open transaction is known by `first_offsets`, where its records begin in each place: no other one begins there.
    Where a place was left out, `new_raw` makes a producer of kafka-python that takes id and epoch of that transaction
    for its own, and ends an empty one. Whoever has taken over meanwhile has a newer epoch, and the broker refuses this.
    """

    def __init__(
        self, new_raw: Callable[[], Any], admin: Any, transactional_id: str, first_offsets: KnownOffsets
    ) -> None:
        super().__init__(None, admin, transactional_id)
        self._new_raw = new_raw
        self._first_offsets = first_offsets

    def _own_at(self, places: Places, deadline: float) -> frozenset[OpenTransaction]:
        return frozenset(
            each
            for each in self._open_at(places, deadline)
            if each.start_offset == self._first_offsets.get(each.place)
        )

    def _tell(self, places: Iterable[KafkaTopicPartition], *, is_committed: bool, deadline: float) -> None:
        found = self._own_at(list(places), deadline)
        for producer_id, epoch in {(each.producer_id, each.producer_epoch) for each in found}:
            raw = self._new_raw()
            try:
                _speak_as(raw, producer_id, epoch)
                left_out = [each.place for each in found]
                self._end_empty(raw, left_out, is_committed=is_committed, deadline=deadline)
            finally:
                end_raw_producer(raw, gently=False)


def _speak_as(raw: Any, producer_id: int, epoch: int) -> None:
    """Have a kafka-python producer be one that has taken over already, as whom the broker knows it."""
    manager = raw._transaction_manager  # noqa: SLF001 - the library knows no other beginning than a take-over
    manager.set_producer_id_and_epoch(ProducerIdAndEpoch(producer_id, epoch))
    manager._current_state = ProducerState.READY  # noqa: SLF001
    # Where another producer has taken over meanwhile, the library would else ask for a new epoch, and disturb that one.
    manager._supports_epoch_bump = lambda: False  # noqa: SLF001


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise kafka_errors.KafkaTimeoutError("some partitions do not know how a transaction ended")
    time.sleep(_look_seconds)
