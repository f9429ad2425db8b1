"""A transactional producer of confluent-kafka as `rollog.kernel.broker.transactions` uses it.

librdkafka cannot ask a partition what is open there, nor tell it how a transaction ended, and Apache Kafka 4 needs both
(`rollog.kernel.broker.kafka_decisions`). So kafka-python's client asks, takes over before this producer does, and
speaks in this producer's name where a partition was left out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from kafka.structs import TopicPartition as KafkaTopicPartition

from rollog.kernel.broker.confluent_errors import error_in
from rollog.kernel.broker.confluent_producer import ConfluentDelivery, ConfluentSending
from rollog.kernel.broker.kafka_errors import translated
from rollog.kernel.broker.kafka_transactions import within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollog.kernel.broker.confluent_errors import LastErrors
    from rollog.kernel.broker.kafka_decisions import Decisions, KnownOffsets
    from rollog.kernel.broker.kafka_transactions import KafkaTransactions
    from rollog.kernel.broker.ports import Headers, TopicPartition


_retry_seconds = 0.01
_answer_seconds = 5.0


class ConfluentTransactions(ConfluentSending):
    """See `rollog.kernel.broker.transactions.TransactionLibrary`.

    `decisions` asks and tells by the offsets in `first_offsets`: where each partition's part of the open transaction
    begins. `predecessor` makes a kafka-python producer of the same id, for the moment of the take-over.
    """

    def __init__(
        self,
        raw: Any,
        errors: LastErrors,
        transactional_id: str,
        *,
        decisions: Decisions,
        first_offsets: KnownOffsets,
        predecessor: Callable[[], KafkaTransactions],
    ) -> None:
        super().__init__(raw, errors)
        self._transactional_id = transactional_id
        self._decisions = decisions
        self._first_offsets = first_offsets
        self._predecessor = predecessor
        self._groups: dict[str, Any] = {}
        self._sent: dict[KafkaTopicPartition, list[ConfluentDelivery]] = {}

    def take_over(self, places: Sequence[TopicPartition], deadline: float) -> None:
        """Fence earlier producers, and decide what they left open in `places`.

        Whoever takes over between the two producers of this take-over is fenced as well, and may leave something open:
        then all is done again.
        """
        place = f"taking over transactional id {self._transactional_id}"
        foreign = [KafkaTopicPartition(each.topic, each.partition) for each in places]
        while True:
            predecessor = self._predecessor()
            try:
                predecessor.take_over(places, deadline)
                producer_id = predecessor.producer_id
            finally:
                predecessor.end(gently=False)
            self._call(deadline, place, self._raw.init_transactions)
            try:
                if not self._decisions.is_open(foreign, producer_id, deadline):
                    return
            except kafka_errors.KafkaError as error:
                raise translated(error, place) from error

    def begin(self) -> None:
        """Start a transaction."""
        self._first_offsets.clear()
        self._sent.clear()
        try:
            self._raw.begin_transaction()
        except KafkaException as exception:
            raise self.translated(exception, self._doing("beginning a transaction")) from exception

    def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Headers
    ) -> ConfluentDelivery:
        """Hand one record over."""
        delivery = super().send(topic, partition, value, key, headers)
        self._sent.setdefault(KafkaTopicPartition(topic, partition), []).append(delivery)
        return delivery

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_id: str, deadline: float) -> None:
        """Commit consumer positions as part of the transaction."""
        positions = [
            ConfluentTopicPartition(at.topic, at.partition, offset) for at, offset in offsets.items()
        ]
        group = self._group(group_id, deadline)
        doing = self._doing(f"adding offsets of group {group_id} to a transaction")
        raw = self._raw

        def offer(left: float) -> None:
            try:
                raw.send_offsets_to_transaction(positions, group, left)
            except KafkaException as exception:
                if error_in(exception).code() != KafkaError._STATE:  # noqa: SLF001 - the library names it so
                    raise
                # A record of the transaction was refused during the call: only the next one says why.
                raw.send_offsets_to_transaction(positions, group, left)

        def send(deadline: float) -> None:
            self._call(deadline, doing, offer)

        try:
            # The library does not keep to its own time-out.
            within(deadline, send, look=lambda: self._require_found(group_id))
        except kafka_errors.KafkaError as error:
            raise translated(error, doing) from error

    def _require_found(self, group_id: str) -> None:
        """Raise KafkaTimeoutError where a broker answers others and this client no longer asks it.

        A cluster whose only broker was fenced says for a moment that it has none, and this client does not begin anew
        from its bootstrap servers (see `transactional_settings`). Whoever starts again finds the broker.
        """
        try:
            self._decisions.await_group(group_id, time.monotonic() + _answer_seconds)
        except kafka_errors.KafkaError:
            return  # nobody is there to be found
        try:
            self._raw.list_topics(next(iter(self._sent)).topic, timeout=_answer_seconds)
        except KafkaException as exception:
            raise kafka_errors.KafkaTimeoutError(
                f"the broker answers, and the library has lost it: {error_in(exception).str()}; end and start again"
            ) from exception

    def commit(self, deadline: float) -> None:
        """Commit; on return every partition written knows of it."""
        self._call(deadline, self._doing("committing a transaction"), self._raw.commit_transaction)
        self.await_decided(deadline, is_committed=True)

    def abort(self, deadline: float) -> None:
        """Abort; on return every partition written knows of it."""
        self._call(deadline, self._doing("aborting a transaction"), self._raw.abort_transaction)
        self.await_decided(deadline, is_committed=False)

    def end(self, *, gently: bool) -> None:
        """End the library's threads."""
        super().end(gently=gently)
        self._decisions.close()

    def await_decided(self, deadline: float, *, is_committed: bool) -> None:
        """Wait until every partition written knows how the transaction ended; tell those that were left out."""
        for place, deliveries in self._sent.items():
            offsets = [offset for each in deliveries if (offset := each.known_offset) is not None]
            if offsets:
                self._first_offsets[place] = min(offsets)
        try:
            within(
                deadline,
                lambda deadline: self._decisions.await_decided(
                    list(self._first_offsets), is_committed=is_committed, deadline=deadline
                ),
            )
        except kafka_errors.KafkaError as error:
            raise translated(error, self._doing("ending a transaction")) from error

    def _call(self, deadline: float, place: str, call: Callable[[float], object]) -> None:
        """A call that may be made again until the deadline, where the library says so."""
        while True:
            try:
                call(max(0.0, deadline - time.monotonic()))
            except KafkaException as exception:
                if error_in(exception).retriable() and time.monotonic() < deadline:
                    time.sleep(_retry_seconds)
                    continue
                raise self.translated(exception, place) from exception
            return

    def _group(self, group_id: str, deadline: float) -> Any:
        """The library takes a group only from a consumer of it; this one never connects.

        Where no broker coordinates the group yet, the library may wait for ever (librdkafka's issues 5456 and 5511).
        """
        if group_id not in self._groups:
            try:
                self._decisions.await_group(group_id, deadline)
            except kafka_errors.KafkaError as error:
                doing = self._doing(f"adding offsets of group {group_id} to a transaction")
                raise translated(error, doing) from error
            consumer = Consumer({"group.id": group_id, "enable.metrics.push": False, "log_level": 0})
            self._groups[group_id] = consumer.consumer_group_metadata()
            consumer.close()
        return self._groups[group_id]

    def _doing(self, what: str) -> str:
        return f"{what} ({self._transactional_id})"
