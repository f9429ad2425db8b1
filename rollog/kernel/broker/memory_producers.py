"""Producers of the broker in memory."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

from rollog.kernel.broker.closing import Closing
from rollog.kernel.broker.limits import record_bytes
from rollog.kernel.broker.transaction_guard import TransactionGuard
from rollog.kernel.errors import BrokerError, BrokerTimeout, ProducerFenced, RecordTooLarge
from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.memory_log import Log
    from rollog.kernel.broker.ports import Delivery, Headers, TopicPartition


class MemoryDelivery:
    """The fate of one record."""

    def __init__(self, broker: MemoryBroker, size: int = 0) -> None:
        self._broker = broker
        self._offset: int | None = None
        self._error: BrokerError | None = None
        self.size = size

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._offset is not None or self._error is not None

    def offset(self, timeout_seconds: float) -> int:
        """Wait for the acknowledgement and return the offset."""
        if not self._broker.wait_for(self.done, timeout_seconds):
            raise BrokerTimeout(f"no acknowledgement within {timeout_seconds:g} s: the outcome is unknown")
        if self._error is not None:
            raise self._error
        assert self._offset is not None
        return self._offset

    def acknowledge(self, offset: int) -> None:
        """The record is in the log."""
        self._offset = offset

    def fail(self, error: BrokerError) -> None:
        """The record is not in the log and never will be."""
        self._error = error


class _Sender:
    """Limits, and account of what is in flight."""

    def __init__(self, broker: MemoryBroker, *, max_in_flight_bytes: int, block_seconds: float) -> None:
        self._broker = broker
        self._max_in_flight_bytes = max_in_flight_bytes
        self._block_seconds = block_seconds
        self._in_flight: deque[MemoryDelivery] = deque()
        self.rejected: BrokerError | None = None

    def admit(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Headers
    ) -> tuple[Log, MemoryDelivery]:
        """Where the record goes, once there is room for it; a delivery that is done was refused."""
        if value is None and key is None:
            raise ValueError("a tombstone needs a key")
        log = self._broker.log(topic, partition)
        limit = self._broker.topic(topic).record_limit_bytes
        size = record_bytes(value, key, headers)
        delivery = MemoryDelivery(self._broker, size)
        if size > limit:
            self.rejected = RecordTooLarge(
                f"a record of {size} bytes is over the {limit} that topic {topic} takes:"
                " raise the topic's max.message.bytes or send less"
            )
            delivery.fail(self.rejected)
            return log, delivery
        self._make_room(size)
        self._in_flight.append(delivery)
        return log, delivery

    def wait(self, timeout_seconds: float) -> None:
        """Wait until everything sent is acknowledged; raises the first failure."""
        deadline = time.monotonic() + timeout_seconds
        while self._in_flight:
            self._in_flight[0].offset(max(0.0, deadline - time.monotonic()))
            self._in_flight.popleft()
        rejected, self.rejected = self.rejected, None
        if rejected is not None:
            raise rejected

    def forget(self) -> None:
        """Start afresh."""
        self._in_flight.clear()
        self.rejected = None

    def _make_room(self, size: int) -> None:
        def has_room() -> bool:
            while self._in_flight and self._in_flight[0].done():
                self._in_flight.popleft()
            in_flight_bytes = sum(delivery.size for delivery in self._in_flight)
            return not self._in_flight or in_flight_bytes + size <= self._max_in_flight_bytes

        if not self._broker.wait_for(has_room, self._block_seconds):
            raise BrokerTimeout(
                f"{self._max_in_flight_bytes} bytes in flight were not acknowledged within"
                f" {self._block_seconds:g} s, their outcome is unknown: is the broker running?"
            )


class MemoryProducer(Closing):
    """An idempotent producer."""

    def __init__(self, broker: MemoryBroker, *, max_in_flight_bytes: int, block_seconds: float) -> None:
        super().__init__()
        self._broker = broker
        self._sender = _Sender(broker, max_in_flight_bytes=max_in_flight_bytes, block_seconds=block_seconds)

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Send one record; see `rollog.kernel.broker.ports.Producer`."""
        self._require_open()
        log, delivery = self._sender.admit(topic, partition, value, key, headers)
        if not delivery.done():
            self._broker.request(lambda: delivery.acknowledge(log.append(value, key, headers, None)))
        return delivery

    def flush(self, timeout_seconds: float) -> None:
        """Wait until every record sent so far is acknowledged; raises the first failure."""
        self._require_open()
        self._sender.wait(timeout_seconds)


class MemoryTransactionalProducer(Component):
    """Producer of transactions; its creation has fenced every earlier one of the same id."""

    def __init__(
        self, broker: MemoryBroker, transactional_id: str, epoch: int, *, block_seconds: float
    ) -> None:
        self._broker = broker
        self._id = transactional_id
        self._epoch = epoch
        self._block_seconds = block_seconds
        self._sender = _Sender(broker, max_in_flight_bytes=64 << 20, block_seconds=block_seconds)
        self._guard = TransactionGuard(transactional_id)

    def begin(self) -> None:
        """Start a transaction."""
        self._guard.require_idle()
        self._guard.begun()

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
        log, delivery = self._sender.admit(topic, partition, value, key, headers)

        def append() -> None:
            try:
                transaction = self._broker.open_transaction(self._id, self._epoch)
            except ProducerFenced as fenced:
                delivery.fail(fenced)
            else:
                delivery.acknowledge(log.append(value, key, headers, transaction))

        if not delivery.done():
            self._broker.request(append)
        return delivery

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_id: str) -> None:
        """Commit consumer positions for `group_id` as part of the transaction."""
        self._guard.require_transaction()

        def add() -> None:
            transaction = self._broker.open_transaction(self._id, self._epoch)
            transaction.offsets.setdefault(group_id, {}).update(offsets)

        self._ask(add, self._block_seconds, "adding offsets to a transaction")

    def commit(self, timeout_seconds: float) -> None:
        """Wait for every record, then commit; aborts and raises when one failed."""
        self._guard.require_transaction()
        deadline = time.monotonic() + timeout_seconds
        try:
            self._sender.wait(timeout_seconds)
        except BrokerError as error:
            self._guard.record_failed(error, self.abort)
            raise
        self._settle(deadline - time.monotonic(), is_committed=True)

    def abort(self) -> None:
        """Undo the open transaction; does nothing when none is open or this producer has ended."""
        if not self._guard.can_abort:
            return
        if not self._guard.has_ended:
            self._settle(self._block_seconds, is_committed=False)
        self._finish()

    def close(self) -> None:
        """Abort what is open and end; raises nothing."""
        if not self._broker.is_paused:
            with contextlib.suppress(BrokerError):
                self.abort()
        self._guard.closed()

    def _settle(self, timeout_seconds: float, *, is_committed: bool) -> None:
        def settle() -> None:
            self._broker.settle_transaction(self._id, self._epoch, is_committed=is_committed)

        self._ask(settle, timeout_seconds, "committing" if is_committed else "aborting")
        self._finish()

    def _ask(self, action: Callable[[], None], timeout_seconds: float, place: str) -> None:
        """Have the broker do something that only the newest producer may; wait until it is done."""
        outcome: list[BrokerError | None] = []

        def act() -> None:
            try:
                action()
            except BrokerError as error:
                outcome.append(error)
            else:
                outcome.append(None)

        self._broker.request(act)
        if not self._broker.wait_for(lambda: bool(outcome), timeout_seconds):
            raise self._guard.end(
                BrokerTimeout(f"{place}: no answer in time; the outcome is unknown: end and recover")
            )
        if outcome[0] is not None:
            raise self._guard.end(outcome[0])

    def _finish(self) -> None:
        self._guard.finished()
        self._sender.forget()
