"""Confluent's own deserializer reads what a run with a schema registry writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from support.broker_topics import read_to_end
from support.builders import a_sample
from support.registered_schemas import registered_run
from support.small_registry import small_registry

from schemas.codec import encode

if TYPE_CHECKING:
    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.topics import RunTopics


def test_a_sample_is_read_by_confluents_deserializer(
    memory_broker: MemoryBroker, run_topics: RunTopics
) -> None:
    sample = a_sample()
    with small_registry() as registry:
        framed = registered_run(memory_broker, registry, run_topics)
        with framed.producer(client_id="worker") as producer:
            producer.send(run_topics.samples, 0, encode(sample)).offset(10)
        (stored,) = read_to_end(memory_broker, run_topics.samples)
        client = SchemaRegistryClient({"url": registry.url})
        deserialize = AvroDeserializer(client)
        place = SerializationContext(run_topics.samples, MessageField.VALUE, stored.headers)
        read = deserialize(stored.value, place)
    assert read["sample_id"] == sample.sample_id
    assert read["token_ids"] == sample.token_ids.tobytes()
    assert read["reward"] == sample.reward
