"""Sending through a client library within limits: what the producers of both Kafka clients share.

What the libraries leave open is closed here: bytes in flight are bounded, the fate of every record is looked at, and a
producer that failed once is not used again (after a time-out the fate of its later records may never be known).
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from rollog.kernel.broker.limits import record_bytes
from rollog.kernel.broker.refusal_watch import look_seconds
from rollog.kernel.errors import BrokerError, BrokerTimeout, RecordTooLarge
from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from rollog.kernel.broker.kafka_topics import TopicDirectory
    from rollog.kernel.broker.ports import Delivery, Headers
    from rollog.kernel.broker.refusal_watch import RefusalWatch

_close_timeout_seconds = 5.0


class SendingLibrary(Protocol):
    """A producer of a client library. Everything here raises rollog's errors."""

    def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Headers
    ) -> Delivery:
        """Hand one record over; returns at once."""
        ...

    def flush(self, timeout_seconds: float) -> None:
        """Send what is waiting to be sent, and wait for acknowledgements as long as that."""
        ...

    def end(self, *, gently: bool) -> None:
        """End the library's threads within seconds, whatever state they are in; raises nothing."""
        ...


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
    """Hands records to the library within limits, and keeps account of those in flight.

    Whoever waits for them hears of a broker that refuses this client as soon as `refusals` does.
    """

    def __init__(
        self,
        library: SendingLibrary,
        directory: TopicDirectory,
        refusals: RefusalWatch,
        *,
        max_in_flight_bytes: int,
        block_seconds: float,
    ) -> None:
        self._library = library
        self._directory = directory
        self._refusals = refusals
        self._max_in_flight_bytes = max_in_flight_bytes
        self._block_seconds = block_seconds
        self._in_flight: deque[tuple[Delivery, int]] = deque()
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
            sent = self._library.send(topic, partition, value, key, headers)
        except BrokerError as error:
            raise self._fail(error) from error
        self._in_flight.append((sent, size))
        self._in_flight_bytes += size
        return sent

    def wait(self, timeout_seconds: float) -> None:
        """Wait until every record sent so far is acknowledged; raises the first failure."""
        self.require_usable()
        deadline = time.monotonic() + timeout_seconds
        self._library.flush(min(timeout_seconds, look_seconds))
        while self._in_flight:
            if (error := self._await_oldest(deadline)) is not None:
                raise BrokerTimeout(
                    f"{len(self._in_flight)} records ({self._in_flight_bytes} bytes) in flight were not acknowledged"
                    f" within {timeout_seconds:g} s; the outcome is unknown: end and recover from the log"
                ) from error
            self._forget_acknowledged()
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

    def forget(self) -> None:
        """Start afresh after a transaction: nothing in flight, nothing failed."""
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._rejected = None
        self.failure = None

    def shut(self, *, deliver: bool) -> None:
        """End the library's threads, first delivering what is in flight for a moment if `deliver`."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            if deliver:
                self._library.flush(_close_timeout_seconds)
        except BrokerError:
            deliver = False
        self._library.end(gently=deliver)
        self._in_flight.clear()

    def _fail(self, error: BrokerError) -> BrokerError:
        """Remember what ended this producer; returns the first such failure."""
        if self.failure is None:
            self.failure = self._refusals.named(error)
        return self.failure

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
            if (error := self._await_oldest(deadline)) is not None:
                raise BrokerTimeout(
                    f"{self._in_flight_bytes} bytes in flight were not acknowledged within"
                    f" {self._block_seconds:g} s, their outcome is unknown: is the broker running?"
                ) from error
            self._forget_acknowledged()

    def _await_oldest(self, deadline: float) -> BrokerError | None:
        """Wait for the oldest record in flight; returns what the library says where its fate is not known in time.

        Raises its failure, and BrokerRefused once the broker is found to refuse this client.
        """
        oldest = self._in_flight[0][0]
        while True:
            now = time.monotonic()
            seconds = max(0.0, min(look_seconds, deadline - now))
            try:
                oldest.offset(seconds)
            except BrokerError as error:
                if oldest.done():
                    raise self._fail(error) from error
                # Less than half of the time: the library has given up.
                if time.monotonic() >= deadline or time.monotonic() - now < seconds / 2:
                    return error
            else:
                self._refusals.heard()
                return None
            try:
                self._refusals.silent()
            except BrokerError as error:
                raise self._fail(error) from error

    def _forget_acknowledged(self) -> None:
        in_flight = self._in_flight
        while in_flight and in_flight[0][0].done():
            sent, size = in_flight.popleft()
            self._in_flight_bytes -= size
            try:
                sent.offset(0.0)
            except BrokerError as error:
                raise self._fail(error) from error


class BoundedProducer(Component):
    """Idempotent producer with bounded bytes in flight; see `rollog.kernel.broker.ports.Producer`."""

    def __init__(
        self,
        library: SendingLibrary,
        directory: TopicDirectory,
        refusals: RefusalWatch,
        *,
        max_in_flight_bytes: int,
        block_seconds: float,
    ) -> None:
        self._sender = RecordSender(
            library, directory, refusals, max_in_flight_bytes=max_in_flight_bytes, block_seconds=block_seconds
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
        """Send one record."""
        return self._sender.send(topic, partition, value, key, headers)

    def flush(self, timeout_seconds: float) -> None:
        """Wait until every record sent so far is acknowledged; raises the first failure."""
        self._sender.wait(timeout_seconds)

    def close(self) -> None:
        """Deliver what is in flight for a few seconds, then end; raises nothing."""
        self._sender.shut(deliver=self._sender.failure is None)
