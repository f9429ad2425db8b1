"""The transactional producer over kafka-python.

The library's own commit would return normally although records of the transaction had failed, and would wait for
ever on some faults. So every record is awaited before the commit, and every call has a deadline.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition

from rollog.kernel.broker.kafka_errors import translated
from rollog.kernel.broker.kafka_producer import RecordSender
from rollog.kernel.broker.transaction_guard import TransactionGuard
from rollog.kernel.errors import BrokerError, BrokerTimeout, ProducerFenced
from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollog.kernel.broker.kafka_decisions import Decisions
    from rollog.kernel.broker.kafka_topics import TopicDirectory
    from rollog.kernel.broker.ports import Delivery, Headers, TopicPartition

_max_in_flight_bytes = 64 << 20
_abort_timeout_seconds = 30.0
_least_commit_seconds = 0.1


class KafkaTransactionalProducer(Component):
    """Producer of transactions; its creation has fenced every earlier one of the same id."""

    def __init__(
        self,
        raw: Any,
        directory: TopicDirectory,
        transactional_id: str,
        decisions: Decisions,
        *,
        block_seconds: float,
    ) -> None:
        # A fenced producer whose send is refused would have the library ask for a new epoch, and that request aborts
        # the transaction of its successor. Without this recovery the refusal is what it should be: fatal.
        raw._transaction_manager._supports_epoch_bump = lambda: False  # noqa: SLF001
        self._raw = raw
        self._transactional_id = transactional_id
        self._directory = directory
        self._decisions = decisions
        self._written: set[KafkaTopicPartition] = set()
        self._block_seconds = block_seconds
        self._sender = RecordSender(
            raw, directory, max_in_flight_bytes=_max_in_flight_bytes, block_seconds=block_seconds
        )
        self._guard = TransactionGuard(transactional_id)

    def take_over(self, topics: Sequence[str]) -> None:
        """Fence earlier producers, and decide what they left open in `topics`. Comes before everything else."""
        places = [
            KafkaTopicPartition(topic, partition)
            for topic in topics
            for partition in range(self._directory.facts(topic).num_partitions)
        ]

        def take(deadline: float) -> None:
            committed = self._decisions.committed_yet_open(places, deadline)
            self._raw.init_transactions()
            self._decisions.take_over(places, committed=committed, deadline=deadline)

        try:
            _within(self._block_seconds, take)
        except kafka_errors.KafkaError as error:
            raise translated(error, f"taking over transactional id {self._transactional_id}") from error

    def begin(self) -> None:
        """Start a transaction."""
        self._guard.require_idle()
        try:
            self._raw.begin_transaction()
        except kafka_errors.KafkaError as error:
            raise self._ended_by(error, "beginning a transaction") from error
        self._guard.begun()
        self._written.clear()

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Send one record within the open transaction."""
        self._guard.require_transaction()
        try:
            delivery = self._sender.send(topic, partition, value, key, headers)
        except ProducerFenced as fenced:
            self._guard.end(fenced)
            raise
        self._written.add(KafkaTopicPartition(topic, partition))
        return delivery

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_id: str) -> None:
        """Commit consumer positions for `group_id` as part of the transaction."""
        self._guard.require_transaction()
        self._sender.require_usable()
        if not offsets:
            return
        positions = {
            KafkaTopicPartition(partition.topic, partition.partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        try:
            _within(self._block_seconds, lambda _: self._raw.send_offsets_to_transaction(positions, group_id))
        except kafka_errors.KafkaError as error:
            # The library would add these offsets to the next transaction too: there must be none.
            raise self._ended_by(error, f"adding offsets of group {group_id} to a transaction") from error

    def commit(self, timeout_seconds: float) -> None:
        """Wait for every record, then commit; aborts and raises when one failed.

        On return every partition written knows of it.
        """
        self._guard.require_transaction()
        deadline = time.monotonic() + timeout_seconds
        try:
            self._sender.wait(timeout_seconds)
        except BrokerError as error:
            self._guard.record_failed(error, self.abort)
            raise

        def commit(deadline: float) -> None:
            self._raw.commit_transaction()
            self._decisions.await_decided(self._written, is_committed=True, deadline=deadline)

        try:
            _within(max(_least_commit_seconds, deadline - time.monotonic()), commit)
        except Exception as error:  # whatever it is, the transaction may be committed
            raise self._commit_failed(error) from error
        self._finish()

    def abort(self) -> None:
        """Undo the open transaction; does nothing when none is open or this producer has ended."""
        if not self._guard.can_abort:
            return
        if not self._guard.has_ended:
            try:
                _within(_abort_timeout_seconds, self._abort)
            except kafka_errors.KafkaError as error:
                raise self._ended_by(error, "aborting a transaction") from error
        self._finish()

    def close(self) -> None:
        """Abort what is open and end; raises nothing."""
        try:
            with contextlib.suppress(BrokerError):
                self.abort()
        finally:
            self._guard.closed()
            self._sender.shut(deliver=False)
            self._decisions.close()

    def _abort(self, deadline: float) -> None:
        self._raw.abort_transaction()
        self._decisions.await_decided(self._written, is_committed=False, deadline=deadline)

    def _finish(self) -> None:
        self._guard.finished()
        self._sender.forget()

    def _commit_failed(self, error: BaseException) -> BrokerError:
        place = f"committing a transaction of {self._transactional_id}"
        ended = self._ended_by(error, place)
        if isinstance(ended, ProducerFenced | BrokerTimeout):
            return ended
        return self._guard.end(
            BrokerTimeout(f"{ended}; whether it was committed is unknown: end and recover from the log")
        )

    def _ended_by(self, error: BaseException, place: str) -> BrokerError:
        """Remember what made this producer unusable for good."""
        cause = error
        if not isinstance(error, kafka_errors.KafkaTimeoutError):
            # The library repeats an earlier fatal error as text only.
            cause = self._raw._transaction_manager.last_error or error  # noqa: SLF001
        return self._guard.end(translated(cause, f"{place} ({self._transactional_id})"))


def _within(seconds: float, call: Callable[[float], object]) -> None:
    """Run calls of the library without a time-out of their own; `call` gets the deadline, by the monotonic clock.

    Raises its error or KafkaTimeoutError.
    """
    deadline = time.monotonic() + seconds
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call(deadline)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            errors.append(error)

    thread = threading.Thread(target=run, name="kafka-transaction", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise kafka_errors.KafkaTimeoutError(f"no answer within {seconds:g} s")
    if errors:
        raise errors[0]
