"""The settings of confluent-kafka's clients, and why they are not the defaults of librdkafka."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from rollog.kernel.broker.confluent_security import security_settings
from rollog.kernel.broker.limits import (
    dead_letter_margin_bytes,
    most_inflated_bytes,
    request_margin_bytes,
)

if TYPE_CHECKING:
    from rollog.kernel.broker.confluent_errors import CommitReports, LastErrors
    from rollog.kernel.broker.kafka_settings import ConnectionSettings

logger = logging.getLogger(__name__)


class QuietLogger:
    """Takes librdkafka's own log lines, whatever their level: what matters of them comes out as errors, too.

    By default the library writes to stderr, in the middle of whatever a command prints.
    """

    def log(self, level: int, *words: object) -> None:
        """What the library calls."""
        del level
        logger.debug(*words)


_reconnect_seconds = 1.0


def client_settings(connection: ConnectionSettings, client_id: str, errors: LastErrors) -> dict[str, Any]:
    """What producers and consumers have in common. Reads secrets: raises ConfigError."""
    return security_settings(connection.security) | {
        "bootstrap.servers": connection.bootstrap_servers,
        "client.id": client_id,
        "socket.connection.setup.timeout.ms": max(1000, round(connection.connect_timeout_seconds * 1000)),
        # By default a client that lost its broker stays away for up to ten seconds.
        "reconnect.backoff.max.ms": round(_reconnect_seconds * 1000),
        # Nothing about this process is told to the broker.
        "enable.metrics.push": False,
        "logger": QuietLogger(),
        "log_level": _severity_of_warnings,
        "error_cb": errors,
    }


_severity_of_warnings = 4


def producer_settings(
    connection: ConnectionSettings, client_id: str, errors: LastErrors, *, max_in_flight_bytes: int
) -> dict[str, Any]:
    """An idempotent producer that outlives a restart of the broker."""
    delivery_ms = round(connection.delivery_timeout_seconds * 1000)
    largest = max(connection.max_record_bytes + dead_letter_margin_bytes + request_margin_bytes, 1 << 20)
    return client_settings(connection, client_id, errors) | {
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": "none",
        "linger.ms": 5,
        # Each batch walks the queue of what waits, so small ones cost more the longer it is. A topic's limit holds for
        # a whole batch: by itself it is a little above this, and that of a run is its largest record.
        "batch.size": min(1_000_000, connection.max_record_bytes),
        "message.max.bytes": largest,
        "delivery.timeout.ms": delivery_ms,
        "request.timeout.ms": min(30_000, max(1, delivery_ms // 2)),
        # The bound is kept by whoever sends; this one must never be met first.
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": (2 * max_in_flight_bytes + 2 * largest) >> 10,
    }


def transactional_settings(
    connection: ConnectionSettings,
    transactional_id: str,
    errors: LastErrors,
    *,
    transaction_timeout_seconds: float,
    max_in_flight_bytes: int,
) -> dict[str, Any]:
    """As the idempotent producer, without waiting for batches to fill."""
    settings = producer_settings(
        connection, transactional_id, errors, max_in_flight_bytes=max_in_flight_bytes
    )
    transaction_ms = round(transaction_timeout_seconds * 1000)
    return settings | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": transaction_ms,
        # A record cannot outlive its transaction, and librdkafka takes no longer time.
        "delivery.timeout.ms": min(settings["delivery.timeout.ms"], transaction_ms),
        "linger.ms": 0,
        "retry.backoff.ms": 10,
        # By default a client that has lost every broker forgets them all and begins anew from its bootstrap servers.
        # That takes a broker which is started again for another one, and `send_offsets_to_transaction` waits for the
        # old one for ever (librdkafka issues 5456 and 5511). All other clients need the default: the only broker of a
        # cluster, fenced because it stood still, answers for a moment that there is none, and nobody asks it again.
        "metadata.recovery.strategy": "none",
    }


def consumer_settings(
    connection: ConnectionSettings,
    client_id: str,
    group_id: str | None,
    errors: LastErrors,
    commits: CommitReports,
) -> dict[str, Any]:
    """A consumer of committed records under manual assignment."""
    return client_settings(connection, client_id, errors) | {
        # The library wants one; without a group of its own a consumer commits nothing.
        "group.id": group_id or f"{client_id}.no-group",
        "on_commit": commits,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "max.partition.fetch.bytes": 4 << 20,
        # A partition added to the assignment waits for the fetch under way to end, and so does the news of an end.
        "fetch.wait.max.ms": 100,
        # A full queue of fetched records is looked at again after this; by default a fast reader stands for a second.
        "fetch.queue.backoff.ms": 5,
        "fetch.error.backoff.ms": 100,
        "queued.max.messages.kbytes": 32 << 10,
        # Also the most that a batch of zstd inflates to. Nothing bounds gzip, lz4 and snappy.
        "receive.message.max.bytes": most_inflated_bytes,
        # The only way in which the library says how far a reader is that has met markers of transactions.
        "enable.partition.eof": True,
        "check.crcs": True,
        "allow.auto.create.topics": False,
    }
