"""What brokers that are only read share: each of their ways to write is refused, in the broker's own words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NoReturn

from rollog.kernel.broker.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.kernel.broker.ports import Producer, TopicPartition, TopicSpec, TransactionalProducer


class ReadOnlyBroker(ABC):
    """The writing half of a broker that is only read."""

    @abstractmethod
    def refuse(self, what: str) -> NoReturn:
        """Raise a BrokerError: this broker cannot be `what`, for example written to."""

    def producer(self, *, client_id: str, max_in_flight_bytes: int = 64 << 20) -> Producer:
        """Raises BrokerError."""
        del client_id, max_in_flight_bytes
        self.refuse("written to")

    def transactional_producer(
        self,
        transactional_id: str,
        *,
        topics: Sequence[str] = (),
        transaction_timeout_seconds: float = 15.0,
    ) -> TransactionalProducer:
        """Raises BrokerError."""
        del transactional_id, topics, transaction_timeout_seconds
        self.refuse("written to")


class ReadOnlyAdmin(Closing):
    """The changing half of the administration of such a broker."""

    def __init__(self, read: ReadOnlyBroker) -> None:
        super().__init__()
        self._read = read

    def create_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Raises BrokerError."""
        del specs
        self._read.refuse("given topics")

    def delete_topics(self, names: Sequence[str]) -> None:
        """Raises BrokerError."""
        del names
        self._read.refuse("deleted from")

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises BrokerError."""
        del offsets
        self._read.refuse("deleted from")
