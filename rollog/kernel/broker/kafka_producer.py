"""A producer of kafka-python as `rollog.kernel.broker.sending` uses it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors

from rollog.kernel.broker.kafka_errors import translated, translating

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Headers

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


class KafkaSending:
    """Hands records to kafka-python; see `rollog.kernel.broker.sending.SendingLibrary`."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Headers
    ) -> KafkaDelivery:
        """Hand one record over."""
        try:
            future = self._raw.send(
                topic,
                value=value,
                key=key,
                headers=headers if type(headers) is list else list(headers),
                partition=partition,
            )
        except kafka_errors.KafkaError as error:
            raise translated(error, f"sending a record to {topic}") from error
        return KafkaDelivery(future, topic)

    def flush(self, timeout_seconds: float) -> None:
        """Send what is waiting, and wait for acknowledgements as long as that."""
        with translating("sending records"), contextlib.suppress(kafka_errors.KafkaTimeoutError):
            self._raw.flush(timeout_seconds)

    def end(self, *, gently: bool) -> None:
        """End the library's thread."""
        end_raw_producer(self._raw, gently=gently)


def end_raw_producer(raw: Any, *, gently: bool) -> None:
    """Close a library producer within seconds, whatever state it is in."""
    if not gently:
        # Without this close() would first wait for records that may never be acknowledged.
        raw._sender.force_close()  # noqa: SLF001
    with contextlib.suppress(kafka_errors.KafkaError):
        raw.close(_close_timeout_seconds)
    # A close() that gave up would be repeated by the finalizer.
    raw._closed = True  # noqa: SLF001
