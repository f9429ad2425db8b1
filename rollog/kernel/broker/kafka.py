"""Apache Kafka behind the broker port, through kafka-python or confluent-kafka (`rollog.kernel.broker.clients`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kafka
import kafka.errors as kafka_errors

from rollog.kernel.broker.clients import ClientName, clients_of
from rollog.kernel.broker.kafka_consumer import KafkaConsumer
from rollog.kernel.broker.kafka_decisions import Decisions
from rollog.kernel.broker.kafka_errors import translated
from rollog.kernel.broker.kafka_producer import KafkaSending, end_raw_producer
from rollog.kernel.broker.kafka_settings import (
    ConnectionSettings,
    client_settings,
    consumer_settings,
    producer_settings,
    transactional_settings,
)
from rollog.kernel.broker.kafka_topics import KafkaAdmin, TopicDirectory
from rollog.kernel.broker.kafka_transactions import KafkaTransactions
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.preflight import parse_addresses, wait_for_broker
from rollog.kernel.broker.refusal_watch import RefusalWatch
from rollog.kernel.broker.security import SecuritySettings, plain_text
from rollog.kernel.broker.sending import BoundedProducer
from rollog.kernel.broker.transactions import GuardedProducer
from rollog.kernel.errors import BrokerError, BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollog.kernel.broker.ports import Consumer
    from rollog.kernel.broker.sending import SendingLibrary
    from rollog.kernel.broker.transactions import TransactionLibrary


class KafkaBroker:
    """A Kafka cluster. Nothing is connected before the first client is asked for.

    Raises ConfigError for a malformed address; every client raises BrokerUnreachable, naming address and cause, when
    no broker answers within `connect_timeout_seconds`; until one has answered, a refused connection is asked again for
    `first_refusals_seconds` only, if that is given. Where a broker answers and does not take `security`, every client
    raises BrokerRefused at once. `client` says through which libraries; raises ConfigError where the one named is not
    installed, or does not know the mechanism.
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
        client: ClientName = "auto",
        security: SecuritySettings = plain_text,
    ) -> None:
        parse_addresses(bootstrap_servers)
        self._client = client
        self._clients = clients_of(client, security)
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
            client=self._client,
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

    def producer(self, *, client_id: str, max_in_flight_bytes: int = 64 << 20) -> BoundedProducer:
        """An idempotent producer."""
        return BoundedProducer(
            self._sending(client_id, max_in_flight_bytes),
            self._directory,
            self._refusals(),
            max_in_flight_bytes=max_in_flight_bytes,
            block_seconds=self._connection.delivery_timeout_seconds,
        )

    def transactional_producer(
        self,
        transactional_id: str,
        *,
        topics: Sequence[str] = (),
        transaction_timeout_seconds: float = 15.0,
    ) -> GuardedProducer:
        """A transactional producer; earlier ones of this id are fenced, what they left undecided aborted.

        On return nothing of an earlier one is undecided in `topics`, whatever became of the broker meanwhile.
        """
        places = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in range(self._directory.facts(topic).num_partitions)
        ]
        producer = GuardedProducer(
            self._transactions(transactional_id, transaction_timeout_seconds),
            self._directory,
            self._refusals(),
            transactional_id,
            block_seconds=self._connection.delivery_timeout_seconds,
        )
        try:
            producer.take_over(places)
        except BaseException:
            producer.close()
            raise
        return producer

    def consumer(self, *, client_id: str, group_id: str | None = None) -> Consumer:
        """A consumer of committed records; `group_id` only names the offsets it commits."""
        if self._clients.confluent_reads:
            from rollog.kernel.broker import confluent  # noqa: PLC0415 - not installed everywhere

            self._wait()
            return confluent.consumer(
                self._connection, self._directory, client_id, group_id, self._refusals()
            )
        raw = self._connected(kafka.KafkaConsumer, consumer_settings(self._connection, client_id, group_id))
        return KafkaConsumer(
            raw,
            self._directory,
            group_id,
            offsets_timeout_seconds=self._connection.offsets_timeout_seconds,
            refusals=self._refusals(),
        )

    def admin(self) -> KafkaAdmin:
        """Administration of topics."""
        settings = client_settings(self._connection, "rollog-admin")
        return KafkaAdmin(self._connected(kafka.KafkaAdminClient, settings), self._refusals())

    def _refusals(self) -> RefusalWatch:
        """For one client."""
        return RefusalWatch(self.address, self._connection.security)

    def _sending(self, client_id: str, max_in_flight_bytes: int) -> SendingLibrary:
        if self._clients.confluent_writes:
            from rollog.kernel.broker import confluent  # noqa: PLC0415 - not installed everywhere

            self._wait()
            return confluent.sending(self._connection, client_id, max_in_flight_bytes)
        return KafkaSending(
            self._connected(kafka.KafkaProducer, producer_settings(self._connection, client_id))
        )

    def _transactions(self, transactional_id: str, timeout_seconds: float) -> TransactionLibrary:
        def raw() -> Any:
            settings = transactional_settings(self._connection, transactional_id, timeout_seconds)
            return self._connected(kafka.KafkaProducer, settings)

        def predecessor() -> KafkaTransactions:
            producer = raw()
            decisions = Decisions(producer, self._asking(transactional_id, producer), transactional_id)
            return KafkaTransactions(producer, decisions, transactional_id)

        if not self._clients.confluent_writes:
            return predecessor()
        from rollog.kernel.broker import confluent  # noqa: PLC0415 - not installed everywhere

        return confluent.transactions(
            self._connection,
            transactional_id,
            timeout_seconds,
            asking=self._asking(transactional_id),
            new_raw=raw,
            predecessor=predecessor,
        )

    def _asking(self, transactional_id: str, raw: Any = None) -> Any:
        """The admin client for questions about transactions; `raw` ends where there can be none."""
        settings = client_settings(self._connection, f"{transactional_id}.decisions")
        try:
            return self._connected(kafka.KafkaAdminClient, settings)
        except BrokerError:
            if raw is not None:
                end_raw_producer(raw, gently=False)
            raise

    def _wait(self) -> None:
        # A broker that answered before is away for a while; an address that never did is taken for wrong.
        wait_for_broker(
            self.address,
            self._connection.connect_timeout_seconds,
            refusals_seconds=None if self._has_answered else self._connection.first_refusals_seconds,
            security=self._connection.security,
        )
        self._has_answered = True

    def _connected(self, client: Callable[..., Any], settings: dict[str, Any]) -> Any:
        self._wait()
        try:
            return client(**settings)
        except (kafka_errors.KafkaTimeoutError, OSError) as error:
            raise BrokerUnreachable(
                f"the broker at {self.address} answers, but no client could be set up within"
                f" {self._connection.connect_timeout_seconds:g} s ({error}): check its listeners and its load"
            ) from error
        except kafka_errors.KafkaError as error:
            raise translated(error, f"connecting to {self.address}") from error
