"""A transactional producer of kafka-python as `rollog.kernel.broker.transactions` uses it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition

from rollog.kernel.broker.kafka_errors import translated
from rollog.kernel.broker.kafka_producer import KafkaDelivery, KafkaSending

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollog.kernel.broker.kafka_decisions import Decisions
    from rollog.kernel.broker.ports import Headers, TopicPartition
    from rollog.kernel.errors import BrokerError


_look_seconds = 5.0


class KafkaTransactions(KafkaSending):
    """See `rollog.kernel.broker.transactions.TransactionLibrary`. Ends `decisions` with itself."""

    def __init__(self, raw: Any, decisions: Decisions, transactional_id: str) -> None:
        # A fenced producer whose send is refused would have the library ask for a new epoch, and that request aborts
        # the transaction of its successor. Without this recovery the refusal is what it should be: fatal.
        raw._transaction_manager._supports_epoch_bump = lambda: False  # noqa: SLF001
        super().__init__(raw)
        self._decisions = decisions
        self._transactional_id = transactional_id
        self._written: set[KafkaTopicPartition] = set()

    @property
    def producer_id(self) -> int:
        """Which producer the broker takes this one and its successors for; known once it has taken over."""
        return int(self._raw._transaction_manager.producer_id_and_epoch.producer_id)  # noqa: SLF001

    def take_over(self, places: Sequence[TopicPartition], deadline: float) -> None:
        """Fence earlier producers, and decide what they left open in `places`."""
        foreign = [KafkaTopicPartition(place.topic, place.partition) for place in places]

        def take(deadline: float) -> None:
            committed = self._decisions.committed_yet_open(foreign, deadline)
            self._raw.init_transactions()
            self._decisions.take_over(foreign, committed=committed, deadline=deadline)

        try:
            within(deadline, take)
        except kafka_errors.KafkaError as error:
            raise translated(error, f"taking over transactional id {self._transactional_id}") from error

    def begin(self) -> None:
        """Start a transaction."""
        try:
            self._raw.begin_transaction()
        except kafka_errors.KafkaError as error:
            raise self._translated(error, "beginning a transaction") from error
        self._written.clear()

    def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Headers
    ) -> KafkaDelivery:
        """Hand one record over."""
        delivery = super().send(topic, partition, value, key, headers)
        self._written.add(KafkaTopicPartition(topic, partition))
        return delivery

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_id: str, deadline: float) -> None:
        """Commit consumer positions as part of the transaction."""
        positions = {
            KafkaTopicPartition(partition.topic, partition.partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        try:
            within(deadline, lambda _: self._raw.send_offsets_to_transaction(positions, group_id))
        except kafka_errors.KafkaError as error:
            raise self._translated(error, f"adding offsets of group {group_id} to a transaction") from error

    def commit(self, deadline: float) -> None:
        """Commit; on return every partition written knows of it."""
        self._end_transaction(deadline, self._raw.commit_transaction, is_committed=True)

    def abort(self, deadline: float) -> None:
        """Abort; on return every partition written knows of it."""
        self._end_transaction(deadline, self._raw.abort_transaction, is_committed=False)

    def end(self, *, gently: bool) -> None:
        """End the library's threads."""
        super().end(gently=gently)
        self._decisions.close()

    def await_decided(self, deadline: float, *, is_committed: bool) -> None:
        """Wait until every partition written knows how the transaction ended; tell those that were left out."""
        self._decisions.await_decided(self._written, is_committed=is_committed, deadline=deadline)

    def _end_transaction(self, deadline: float, decide: Callable[[], object], *, is_committed: bool) -> None:
        def end(deadline: float) -> None:
            decide()
            self.await_decided(deadline, is_committed=is_committed)

        try:
            within(deadline, end)
        except kafka_errors.KafkaError as error:
            word = "committing" if is_committed else "aborting"
            raise self._translated(error, f"{word} a transaction") from error

    def _translated(self, error: BaseException, place: str) -> BrokerError:
        cause = error
        if not isinstance(error, kafka_errors.KafkaTimeoutError):
            # The library repeats an earlier fatal error as text only.
            cause = self._raw._transaction_manager.last_error or error  # noqa: SLF001
        return translated(cause, f"{place} ({self._transactional_id})")


def within(
    deadline: float, call: Callable[[float], object], *, look: Callable[[], object] | None = None
) -> None:
    """Run calls of the library without a time-out of their own; `call` gets the deadline, by the monotonic clock.

    Raises its error or KafkaTimeoutError, and what `look` raises, which is called every 5 s meanwhile.
    """
    seconds = max(0.0, deadline - time.monotonic())
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call(deadline)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            errors.append(error)

    thread = threading.Thread(target=run, name="kafka-transaction", daemon=True)
    thread.start()
    while look is not None and deadline - time.monotonic() > _look_seconds:
        thread.join(_look_seconds)
        if not thread.is_alive():
            break
        look()
    thread.join(max(0.0, deadline - time.monotonic()))
    if thread.is_alive():
        raise kafka_errors.KafkaTimeoutError(f"no answer within {seconds:g} s")
    if errors:
        raise errors[0]
