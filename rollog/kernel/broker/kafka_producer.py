"""The idempotent producer over kafka-python, and what it shares with the transactional one.

What the library leaves open is closed here: bytes in flight are bounded, every future is looked at, and a producer
that failed once is not used again (after a time-out its later futures may never resolve).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors

from rollog.kernel.broker.kafka_errors import translated
from rollog.kernel.broker.limits import record_bytes
from rollog.kernel.errors import BrokerTimeout, RecordTooLarge
from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from rollog.kernel.broker.kafka_topics import TopicDirectory
    from rollog.kernel.broker.ports import Delivery, Headers
    from rollog.kernel.errors import BrokerError

_close_timeout_seconds = 5.0


class KafkaDelivery:
    """The fate of one record handed to kafka-python."""

    __slots__ = ("_future", "_topic")

    def __init__(self, future: Any, topic: str) -> None:
        self._future = future
        self._topic = topic

    def done(self) -> bool:
        """Whether the outcome is known."""
        return bool(self._future.is_done)

    def offset(self, timeout_seconds: float) -> int:
        """Wait for the acknowledgement and return the offset."""
        try:
            return int(self._future.get(timeout_seconds).offset)
        except kafka_errors.KafkaError as error:
            raise translated(error, f"sending a record to {self._topic}") from error


class RejectedDelivery:
    """The fate of a record that was never sent."""

    __slots__ = ("_error",)

    def __init__(self, error: BrokerError) -> None:
        self._error = error

    def done(self) -> bool:
        """Whether the outcome is known, which it is."""
        return True

    def offset(self, timeout_seconds: float) -> int:
        """Raise the reason."""
        del timeout_seconds
        raise self._error


class RecordSender:
    """Hands records to the library within limits, and keeps account of those in flight."""

    def __init__(
        self, raw: Any, directory: TopicDirectory, *, max_in_flight_bytes: int, block_seconds: float
    ) -> None:
        self._raw = raw
        self._directory = directory
        self._max_in_flight_bytes = max_in_flight_bytes
        self._block_seconds = block_seconds
        self._in_flight: deque[tuple[Any, int]] = deque()
        self._in_flight_bytes = 0
        self._limits: dict[tuple[str, int], int] = {}
        self._rejected: BrokerError | None = None
        self.failure: BrokerError | None = None
        self.is_closed = False

    def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Headers
    ) -> Delivery:
        """Hand over one record, blocking while too much is in flight."""
        self.require_usable()
        if value is None and key is None:
            raise ValueError("a tombstone needs a key")
        limit = self._limits.get((topic, partition)) or self._limit(topic, partition)
        size = record_bytes(value, key, headers)
        if size > limit:
            return self._reject(topic, size, limit)
        self._make_room(size)
        try:
            future = self._raw.send(
                topic,
                value=value,
                key=key,
                headers=headers if type(headers) is list else list(headers),
                partition=partition,
            )
        except kafka_errors.KafkaError as error:
            raise self.fail(error, f"sending a record to {topic}") from error
        self._in_flight.append((future, size))
        self._in_flight_bytes += size
        return KafkaDelivery(future, topic)

    def wait(self, timeout_seconds: float) -> None:
        """Wait until every record sent so far is acknowledged; raises the first failure."""
        self.require_usable()
        deadline = time.monotonic() + timeout_seconds
        try:
            self._raw.flush(timeout_seconds)
            while self._in_flight:
                self._in_flight[0][0].get(max(0.0, deadline - time.monotonic()))
                self._forget_acknowledged()
        except kafka_errors.KafkaError as error:
            place = f"waiting for {len(self._in_flight)} records ({self._in_flight_bytes} bytes) in flight"
            if self._in_flight and self._in_flight[0][0].is_done:
                raise self.fail(error, "sending a record") from error
            raise translated(error, place) from error
        self.require_usable()
        rejected, self._rejected = self._rejected, None
        if rejected is not None:
            raise rejected

    def require_usable(self) -> None:
        """Raise if this producer was closed or has failed before."""
        if self.is_closed:
            raise ValueError("this producer is closed")
        if self.failure is not None:
            raise self.failure

    def fail(self, error: BaseException, place: str) -> BrokerError:
        """Remember what ended this producer; returns the first such failure."""
        if self.failure is None:
            self.failure = translated(error, place)
        return self.failure

    def forget(self) -> None:
        """Start afresh after a transaction: nothing in flight, nothing failed."""
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._rejected = None
        self.failure = None

    def shut(self, *, deliver: bool) -> None:
        """End the library's thread, first delivering what is in flight for a moment if `deliver`."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            if deliver:
                self._raw.flush(_close_timeout_seconds)
        except kafka_errors.KafkaError:
            deliver = False
        end_raw_producer(self._raw, gently=deliver)
        self._in_flight.clear()

    def _limit(self, topic: str, partition: int) -> int:
        limit = self._directory.require(topic, partition).record_limit_bytes
        self._limits[topic, partition] = limit
        return limit

    def _reject(self, topic: str, size: int, limit: int) -> RejectedDelivery:
        self._rejected = RecordTooLarge(
            f"a record of {size} bytes is over the {limit} that topic {topic} takes:"
            " raise the topic's max.message.bytes or send less"
        )
        return RejectedDelivery(self._rejected)

    def _make_room(self, size: int) -> None:
        self._forget_acknowledged()
        deadline = None
        while self._in_flight and self._in_flight_bytes + size > self._max_in_flight_bytes:
            deadline = deadline or time.monotonic() + self._block_seconds
            oldest = self._in_flight[0][0]
            try:
                oldest.get(max(0.0, deadline - time.monotonic()))
            except kafka_errors.KafkaError as error:
                if oldest.is_done:
                    raise self.fail(error, "sending a record") from error
                raise BrokerTimeout(
                    f"{self._in_flight_bytes} bytes in flight were not acknowledged within"
                    f" {self._block_seconds:g} s, their outcome is unknown: is the broker running?"
                ) from error
            self._forget_acknowledged()

    def _forget_acknowledged(self) -> None:
        in_flight = self._in_flight
        while in_flight and in_flight[0][0].is_done:
            future, size = in_flight.popleft()
            self._in_flight_bytes -= size
            if future.exception is not None:
                raise self.fail(future.exception, "sending a record")


def end_raw_producer(raw: Any, *, gently: bool) -> None:
    """Close a library producer within seconds, whatever state it is in."""
    if not gently:
        # Without this close() would first wait for records that may never be acknowledged.
        raw._sender.force_close()  # noqa: SLF001
    with contextlib.suppress(kafka_errors.KafkaError):
        raw.close(_close_timeout_seconds)
    # A close() that gave up would be repeated by the finalizer.
    raw._closed = True  # noqa: SLF001


class KafkaProducer(Component):
    """Idempotent producer with bounded bytes in flight."""

    def __init__(
        self, raw: Any, directory: TopicDirectory, *, max_in_flight_bytes: int, block_seconds: float
    ) -> None:
        self._sender = RecordSender(
            raw, directory, max_in_flight_bytes=max_in_flight_bytes, block_seconds=block_seconds
        )

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
        return self._sender.send(topic, partition, value, key, headers)

    def flush(self, timeout_seconds: float) -> None:
        """Wait until every record sent so far is acknowledged; raises the first failure."""
        self._sender.wait(timeout_seconds)

    def close(self) -> None:
        """Deliver what is in flight for a few seconds, then end; raises nothing."""
        self._sender.shut(deliver=self._sender.failure is None)
