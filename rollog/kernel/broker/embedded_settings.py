"""How the embedded Apache Kafka is configured: one node, broker and controller at once, on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.broker.limits import dead_letter_margin_bytes, largest_record_limit_bytes

if TYPE_CHECKING:
    from pathlib import Path

loopback = "127.0.0.1"

java_options = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)


def server_properties(
    log_directory: Path, broker_port: int, controller_port: int, *, host: str = loopback
) -> str:
    """Text of `server.properties`; clients reach the broker at `host`.

    The controller voters are static, so that the ports may differ from one start to the next.
    """
    record_limit = largest_record_limit_bytes + dead_letter_margin_bytes
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{loopback}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{host}:{broker_port},CONTROLLER://{loopback}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{host}:{broker_port}",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(log_directory),
        # A broker that is held up for so long, by a busy machine or disk, is shut out until it has caught up. One that
        # was killed is let back in after so long: its start took 6.2 s then, 3.5 s with 2 s here.
        "broker.session.timeout.ms": "5000",
        "broker.heartbeat.interval.ms": "500",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "message.max.bytes": str(record_limit),
        "replica.fetch.max.bytes": str(record_limit),
        "log.retention.ms": "-1",
        # Positions of a finished run stay visible to ordinary tools.
        "offsets.retention.minutes": "2147483647",
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": str(8 << 20),
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
