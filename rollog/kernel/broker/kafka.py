"""Apache Kafka behind the broker port, through kafka-python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kafka
import kafka.errors as kafka_errors

from rollog.kernel.broker.kafka_consumer import KafkaConsumer
from rollog.kernel.broker.kafka_decisions import Decisions
from rollog.kernel.broker.kafka_errors import translated
from rollog.kernel.broker.kafka_producer import KafkaProducer, end_raw_producer
from rollog.kernel.broker.kafka_settings import (
    ConnectionSettings,
    client_settings,
    consumer_settings,
    producer_settings,
    transactional_settings,
)
from rollog.kernel.broker.kafka_topics import KafkaAdmin, TopicDirectory
from rollog.kernel.broker.kafka_transactions import KafkaTransactionalProducer
from rollog.kernel.broker.preflight import parse_addresses, wait_for_broker
from rollog.kernel.broker.refusal_watch import RefusalWatch
from rollog.kernel.broker.security import SecuritySettings, plain_text
from rollog.kernel.errors import BrokerError, BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class KafkaBroker:
    """A Kafka cluster. Nothing is connected before the first client is asked for.

    Raises ConfigError for a malformed address; every client raises BrokerUnreachable, naming address and cause, when
    no broker answers within `connect_timeout_seconds`; until one has answered, a refused connection is asked again for
    `first_refusals_seconds` only, if that is given. Where a broker answers and does not take `security`, every client
    raises BrokerRefused at once.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        connect_timeout_seconds: float = 10.0,
        delivery_timeout_seconds: float = 120.0,
        max_record_bytes: int = 16 << 20,
        offsets_timeout_seconds: float = 30.0,
        first_refusals_seconds: float | None = None,
        security: SecuritySettings = plain_text,
    ) -> None:
        parse_addresses(bootstrap_servers)
        self._has_answered = False
        self._connection = ConnectionSettings(
            bootstrap_servers=bootstrap_servers,
            connect_timeout_seconds=connect_timeout_seconds,
            delivery_timeout_seconds=delivery_timeout_seconds,
            max_record_bytes=max_record_bytes,
            offsets_timeout_seconds=offsets_timeout_seconds,
            first_refusals_seconds=first_refusals_seconds,
            security=security,
        )
        self._directory = TopicDirectory(self.admin, max_record_bytes)

    def with_limits(
        self,
        *,
        connect_timeout_seconds: float | None = None,
        max_record_bytes: int | None = None,
        offsets_timeout_seconds: float | None = None,
    ) -> KafkaBroker:
        """The same cluster, for clients with these limits; None keeps one. Connects to nothing."""
        connection = self._connection
        limited = KafkaBroker(
            connection.bootstrap_servers,
            connect_timeout_seconds=connect_timeout_seconds or connection.connect_timeout_seconds,
            delivery_timeout_seconds=connection.delivery_timeout_seconds,
            max_record_bytes=max_record_bytes or connection.max_record_bytes,
            offsets_timeout_seconds=offsets_timeout_seconds or connection.offsets_timeout_seconds,
            first_refusals_seconds=connection.first_refusals_seconds,
            security=connection.security,
        )
        limited._has_answered = self._has_answered
        return limited

    @property
    def address(self) -> str:
        """`host:port[,host:port]` as given."""
        return self._connection.bootstrap_servers

    @property
    def principal(self) -> str | None:
        """`User:` and the user of SASL. What a certificate or a token makes of a client is decided by the cluster."""
        security = self._connection.security
        if security.username is not None:
            return f"User:{security.username}"
        return "User:ANONYMOUS" if security == plain_text else None

    def producer(self, *, client_id: str, max_in_flight_bytes: int = 64 << 20) -> KafkaProducer:
        """An idempotent producer."""
        raw = self._connected(kafka.KafkaProducer, producer_settings(self._connection, client_id))
        return KafkaProducer(
            raw,
            self._directory,
            max_in_flight_bytes=max_in_flight_bytes,
            block_seconds=self._connection.delivery_timeout_seconds,
        )

    def transactional_producer(
        self,
        transactional_id: str,
        *,
        topics: Sequence[str] = (),
        transaction_timeout_seconds: float = 15.0,
    ) -> KafkaTransactionalProducer:
        """A transactional producer; earlier ones of this id are fenced, what they left undecided aborted.

        On return nothing of an earlier one is undecided in `topics`, whatever became of the broker meanwhile.
        """
        settings = transactional_settings(self._connection, transactional_id, transaction_timeout_seconds)
        raw = self._connected(kafka.KafkaProducer, settings)
        decisions = self._decisions(raw, transactional_id)
        producer = KafkaTransactionalProducer(
            raw,
            self._directory,
            transactional_id,
            decisions,
            block_seconds=self._connection.delivery_timeout_seconds,
        )
        try:
            producer.take_over(topics)
        except BaseException:
            producer.close()
            raise
        return producer

    def _decisions(self, raw: Any, transactional_id: str) -> Decisions:
        settings = client_settings(self._connection, f"{transactional_id}.decisions")
        try:
            return Decisions(raw, self._connected(kafka.KafkaAdminClient, settings), transactional_id)
        except BrokerError:
            end_raw_producer(raw, gently=False)
            raise

    def consumer(self, *, client_id: str, group_id: str | None = None) -> KafkaConsumer:
        """A consumer of committed records; `group_id` only names the offsets it commits."""
        raw = self._connected(kafka.KafkaConsumer, consumer_settings(self._connection, client_id, group_id))
        return KafkaConsumer(
            raw,
            self._directory,
            group_id,
            offsets_timeout_seconds=self._connection.offsets_timeout_seconds,
            refusals=RefusalWatch(self.address, self._connection.security),
        )

    def admin(self) -> KafkaAdmin:
        """Administration of topics."""
        return KafkaAdmin(
            self._connected(kafka.KafkaAdminClient, client_settings(self._connection, "rollog-admin"))
        )

    def _connected(self, client: Callable[..., Any], settings: dict[str, Any]) -> Any:
        # A broker that answered before is away for a while; an address that never did is taken for wrong.
        wait_for_broker(
            self.address,
            self._connection.connect_timeout_seconds,
            refusals_seconds=None if self._has_answered else self._connection.first_refusals_seconds,
            security=self._connection.security,
        )
        self._has_answered = True
        try:
            return client(**settings)
        except (kafka_errors.KafkaTimeoutError, OSError) as error:
            raise BrokerUnreachable(
                f"the broker at {self.address} answers, but no client could be set up within"
                f" {self._connection.connect_timeout_seconds:g} s ({error}): check its listeners and its load"
            ) from error
        except kafka_errors.KafkaError as error:
            raise translated(error, f"connecting to {self.address}") from error
