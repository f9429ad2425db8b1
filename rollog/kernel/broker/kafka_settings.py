"""The kafka-python settings of every client, and why they are not the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollog.kernel.broker.kafka_security import security_settings
from rollog.kernel.broker.limits import dead_letter_margin_bytes, request_margin_bytes
from rollog.kernel.broker.security import SecuritySettings, plain_text

_reconnect_seconds = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Where the cluster is, how patient clients are, and where their credentials stand."""

    bootstrap_servers: str
    connect_timeout_seconds: float = 10.0
    """How long a new client waits for the first answer."""
    first_refusals_seconds: float | None = None
    """How long a refused connection is asked again before a broker has answered; None: as long as a silent one."""
    delivery_timeout_seconds: float = 120.0
    """How long a record may stay unacknowledged; longer than any restart of the broker."""
    offsets_timeout_seconds: float = 30.0
    """How long a consumer that asks for the ends of topics waits for a broker that is away."""
    max_record_bytes: int = 16 << 20
    """Largest record a producer sends to a topic whose own limit it may not ask for."""
    security: SecuritySettings = plain_text
    """How clients connect, and as whom."""


def client_settings(connection: ConnectionSettings, client_id: str) -> dict[str, Any]:
    """What producers, consumers and the admin have in common. Secrets are read now; raises ConfigError."""
    connect_ms = round(connection.connect_timeout_seconds * 1000)
    return {
        "bootstrap_servers": [part.strip() for part in connection.bootstrap_servers.split(",")],
        "client_id": client_id,
        "bootstrap_timeout_ms": connect_ms,
        # By default a client that lost its broker stays away for up to half a minute.
        "reconnect_backoff_max_ms": round(_reconnect_seconds * 1000),
        **security_settings(connection.security),
    }


def producer_settings(connection: ConnectionSettings, client_id: str) -> dict[str, Any]:
    """An idempotent producer that outlives a restart of the broker."""
    delivery_ms = round(connection.delivery_timeout_seconds * 1000)
    largest = connection.max_record_bytes + dead_letter_margin_bytes + request_margin_bytes
    return client_settings(connection, client_id) | {
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": 5,
        # A topic's limit holds for a whole batch, and that of a run is its largest record.
        "batch_size": min(256 << 10, connection.max_record_bytes),
        "max_request_size": max(largest, 1 << 20),
        "delivery_timeout_ms": delivery_ms,
        "request_timeout_ms": min(30_000, delivery_ms // 2),
        "max_block_ms": min(60_000, delivery_ms),
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
    }


def transactional_settings(
    connection: ConnectionSettings, transactional_id: str, transaction_timeout_seconds: float
) -> dict[str, Any]:
    """As the idempotent producer, without waiting for batches to fill."""
    return producer_settings(connection, transactional_id) | {
        "transactional_id": transactional_id,
        "transaction_timeout_ms": round(transaction_timeout_seconds * 1000),
        "linger_ms": 0,
        # Each step of a transaction may wait for this; the default makes a commit seven times slower.
        "retry_backoff_ms": 10,
    }


def consumer_settings(connection: ConnectionSettings, client_id: str, group_id: str | None) -> dict[str, Any]:
    """A consumer of committed records under manual assignment."""
    return client_settings(connection, client_id) | {
        "group_id": group_id,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "max_partition_fetch_bytes": 4 << 20,
        "max_poll_records": 2000,
        # A partition added to the assignment waits for the fetch under way to end.
        "fetch_max_wait_ms": 200,
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
    }
