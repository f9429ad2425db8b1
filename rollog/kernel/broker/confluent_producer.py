"""A producer of confluent-kafka as `rollog.kernel.broker.sending` uses it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from rollog.kernel.broker.client_errors import Meaning
from rollog.kernel.broker.confluent_errors import translated

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from rollog.kernel.broker.confluent_errors import LastErrors
    from rollog.kernel.broker.ports import Headers
    from rollog.kernel.errors import BrokerError


class ConfluentDelivery:
    """The fate of one record handed to librdkafka, which tells it whenever its producer is polled."""

    __slots__ = ("_is_known", "_offset", "_refusal", "_sending", "_topic")

    def __init__(self, sending: ConfluentSending, topic: str) -> None:
        self._sending = sending
        self._topic = topic
        self._is_known = False
        self._refusal: KafkaError | None = None
        self._offset = -1

    def told(self, error: KafkaError | None, message: Any) -> None:
        """The library's delivery report."""
        if error is None:
            self._offset = message.offset()
        else:
            self._refusal = error
        self._is_known = True

    @property
    def known_offset(self) -> int | None:
        """The offset, where the record is known to be there."""
        return self._offset if self._is_known and self._refusal is None else None

    def done(self) -> bool:
        """Whether the outcome is known."""
        if not self._is_known:
            self._sending.poll(0.0)
        return self._is_known

    def offset(self, timeout_seconds: float) -> int:
        """Wait for the acknowledgement and return the offset."""
        if not self._is_known:
            self._wait(timeout_seconds)
        if self._refusal is not None:
            raise self._sending.translated(
                KafkaException(self._refusal), f"sending a record to {self._topic}"
            )
        return self._offset

    def _wait(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            is_polled = self._sending.poll(left)
            if self._is_known:
                return
            self._sending.raise_fatal(f"sending a record to {self._topic}")
            if not left or not is_polled:
                raise Meaning.UNKNOWN_OUTCOME.error(
                    f"sending a record to {self._topic}: not acknowledged within {timeout_seconds:g} s"
                )


class ConfluentSending:
    """Hands records to librdkafka; see `rollog.kernel.broker.sending.SendingLibrary`."""

    def __init__(self, raw: Any, errors: LastErrors) -> None:
        self._raw = raw
        self._errors = errors

    def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Headers
    ) -> ConfluentDelivery:
        """Hand one record over."""
        delivery = ConfluentDelivery(self, topic)
        try:
            self._raw.produce(
                topic,
                value,
                key,
                partition,
                delivery.told,
                headers=headers if type(headers) is list else list(headers),
            )
        except KafkaException as exception:
            raise self.translated(exception, f"sending a record to {topic}") from exception
        return delivery

    def poll(self, timeout_seconds: float) -> bool:
        """Have deliveries told; False where nothing more will be told, because this producer has ended."""
        if self._raw is None:
            return False
        try:
            self._raw.poll(timeout_seconds)
        except KafkaException as exception:
            self._errors.hear(exception)
        return True

    def raise_fatal(self, place: str) -> None:
        """Raise what has ended this producer for good, if anything has."""
        if self._errors.fatal is not None:
            raise translated(self._errors.fatal, place)

    def flush(self, timeout_seconds: float) -> None:
        """Send what is waiting, and wait for acknowledgements as long as that.

        The library's own call goes on telling deliveries after it has met what ends the client, which Python takes for
        an error of its own.
        """
        deadline = time.monotonic() + timeout_seconds
        while len(self._raw) and (left := deadline - time.monotonic()) > 0:
            self.poll(left)

    def end(self, *, gently: bool) -> None:
        """End the library's threads; what is still under way is given up."""
        del gently  # whoever is gentle has flushed before
        # The library's own close() would first end a transaction, and wait for records that may never be acknowledged.
        self._raw.purge()
        self.poll(0.0)
        self._raw = None

    def translated(self, exception: KafkaException, place: str) -> BrokerError:
        """What an exception of the library means to rollog."""
        if not self._errors.knows_why(exception):
            self.poll(0.0)  # what has ended the client is told only to who asks
        return self._errors.translated(exception, place)
