"""Sending what is only worth its newest: a heartbeat that could not be written yet needs none behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Delivery, Headers, Producer


class OneAtATime:
    """While the broker is away one record waits and the others are left out: nothing grows."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._sent: Delivery | None = None

    def send(
        self, topic: str, partition: int, value: bytes | None, *, key: bytes | None, headers: Headers = ()
    ) -> bool:
        """Send one record; False where the one before is not acknowledged yet.

        Raises BrokerError where the one before could not be delivered.
        """
        if self._sent is not None:
            if not self._sent.done():
                return False
            self._sent.offset(0.0)
        self._sent = self._producer.send(topic, partition, value, key=key, headers=headers)
        return True
