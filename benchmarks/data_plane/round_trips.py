"""Ways of sending N records and reading them back, in one process on one partition.

`ours` encodes a Sample, sends it through the broker port, polls it and decodes it; `ready_bytes` sends ready bytes with
kafka-python and polls them; `bare_avro`, the ideal, has nothing but fastavro's own writer and reader between ready
dicts and bytes. All use the same client settings and put the same bytes on the wire.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from fastavro import schemaless_reader, schemaless_writer
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaTopicPartition

from rollog.kernel.broker.kafka_settings import consumer_settings, producer_settings
from rollog.kernel.broker.ports import TopicPartition
from schemas import Sample
from schemas.catalogue import load_catalogue
from schemas.codec import decode, encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollog.kernel.broker.kafka_settings import ConnectionSettings
    from rollog.kernel.broker.ports import Broker, Headers

topic = "data-plane"


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds of one round."""

    send_seconds: float
    read_seconds: float

    def records_per_second(self, num_records: int) -> float:
        """Records sent and read back per second."""
        return num_records / (self.send_seconds + self.read_seconds)


def ours(broker: Broker, samples: Sequence[Sample]) -> Rate:
    """Encode, send, poll, decode."""
    place = TopicPartition(topic, 0)
    with broker.consumer(client_id="ours") as consumer, broker.producer(client_id="ours") as producer:
        begin = consumer.end_offsets([place])[place]
        consumer.assign({place: begin})
        started = time.perf_counter()
        for sample in samples:
            producer.send(topic, 0, encode(sample), headers=headers_of(sample))
        producer.flush(60.0)
        sent = time.perf_counter()
        num_read = 0
        while num_read < len(samples):
            for record in consumer.poll(1.0):
                decode(record.value or b"")
                num_read += 1
        return Rate(sent - started, time.perf_counter() - sent)


def raw(
    connection: ConnectionSettings,
    items: Sequence[tuple[Any, Headers]],
    write: Callable[[Any], bytes],
    read: Callable[[bytes], object],
) -> Rate:
    """Send and poll with kafka-python itself; `write` and `read` stand between the items and their bytes."""
    place = KafkaTopicPartition(topic, 0)
    consumer: Any = KafkaConsumer(**consumer_settings(connection, "raw", None))
    producer: Any = KafkaProducer(**producer_settings(connection, "raw"))
    try:
        consumer.assign([place])
        consumer.seek(place, consumer.end_offsets([place])[place])
        started = time.perf_counter()
        for item, headers in items:
            producer.send(topic, value=write(item), headers=headers, partition=0)
        producer.flush(60.0)
        sent = time.perf_counter()
        num_read = 0
        while num_read < len(items):
            for records in consumer.poll(timeout_ms=1000).values():
                for record in records:
                    read(record.value)
                num_read += len(records)
        return Rate(sent - started, time.perf_counter() - sent)
    finally:
        producer.close()
        consumer.close()


def ready_bytes(connection: ConnectionSettings, values: Sequence[tuple[bytes, Headers]]) -> Rate:
    """kafka-python alone."""
    return raw(connection, values, lambda value: value, lambda value: value)


def bare_avro(connection: ConnectionSettings, items: Sequence[tuple[dict[str, Any], Headers]]) -> Rate:
    """kafka-python and fastavro, and nothing of rollog."""
    schema = load_catalogue().current[Sample.__name__].parsed

    def write(item: dict[str, Any]) -> bytes:
        buffer = BytesIO()
        schemaless_writer(buffer, schema, item)
        return buffer.getvalue()

    return raw(connection, items, write, lambda value: schemaless_reader(BytesIO(value), schema))
