"""The parts of confluent-kafka's clients that `rollog.kernel.broker.kafka` puts behind the broker port.

Nothing here connects: whoever calls has seen that a broker answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import confluent_kafka

from rollog.kernel.broker.confluent_consumer import ConfluentConsumer
from rollog.kernel.broker.confluent_errors import CommitReports, LastErrors
from rollog.kernel.broker.confluent_producer import ConfluentSending
from rollog.kernel.broker.confluent_settings import (
    consumer_settings,
    producer_settings,
    transactional_settings,
)
from rollog.kernel.broker.confluent_transactions import ConfluentTransactions
from rollog.kernel.broker.kafka_decisions import DecisionsInName

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafka.structs import TopicPartition as KafkaTopicPartition

    from rollog.kernel.broker.kafka_settings import ConnectionSettings
    from rollog.kernel.broker.kafka_topics import TopicDirectory
    from rollog.kernel.broker.kafka_transactions import KafkaTransactions
    from rollog.kernel.broker.refusal_watch import RefusalWatch

_transaction_bytes = 64 << 20


def sending(connection: ConnectionSettings, client_id: str, max_in_flight_bytes: int) -> ConfluentSending:
    """An idempotent producer."""
    errors = LastErrors(client_id)
    settings = producer_settings(connection, client_id, errors, max_in_flight_bytes=max_in_flight_bytes)
    return ConfluentSending(confluent_kafka.Producer(settings), errors)


def transactions(
    connection: ConnectionSettings,
    transactional_id: str,
    transaction_timeout_seconds: float,
    *,
    asking: Any,
    new_raw: Callable[[], Any],
    predecessor: Callable[[], KafkaTransactions],
) -> ConfluentTransactions:
    """A transactional producer that has not taken over yet.

    `asking` is kafka-python's admin client, `new_raw` and `predecessor` make its producers of the same id.
    """
    errors = LastErrors(transactional_id)
    settings = transactional_settings(
        connection,
        transactional_id,
        errors,
        transaction_timeout_seconds=transaction_timeout_seconds,
        max_in_flight_bytes=_transaction_bytes,
    )
    first_offsets: dict[KafkaTopicPartition, int] = {}
    decisions = DecisionsInName(new_raw, asking, transactional_id, first_offsets)
    raw = confluent_kafka.Producer(settings)
    return ConfluentTransactions(
        raw,
        errors,
        transactional_id,
        decisions=decisions,
        first_offsets=first_offsets,
        predecessor=predecessor,
    )


def consumer(
    connection: ConnectionSettings,
    directory: TopicDirectory,
    client_id: str,
    group_id: str | None,
    refusals: RefusalWatch,
) -> ConfluentConsumer:
    """A consumer of committed records."""
    errors = LastErrors(client_id)
    commits = CommitReports(group_id)
    raw = confluent_kafka.Consumer(consumer_settings(connection, client_id, group_id, errors, commits))
    return ConfluentConsumer(
        raw,
        errors,
        commits,
        directory,
        group_id,
        offsets_timeout_seconds=connection.offsets_timeout_seconds,
        refusals=refusals,
    )
