"""What a reader through confluent-kafka makes of batches that are not rollog's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.broker_topics import a_topic
from support.waiting import wait_until

from rollog.kernel.broker.limits import most_inflated_bytes
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import BrokerError

if TYPE_CHECKING:
    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.ports import Record

pytestmark = pytest.mark.broker

beyond_the_bound = most_inflated_bytes + (1 << 20)


def write_compressed(broker: KafkaBroker, topic: str, codec: str, num_bytes: int) -> None:
    """One record of so many zeros, as a client of others writes it."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    refusals: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.address,
            "compression.type": codec,
            "message.max.bytes": num_bytes + 1000,
            "queue.buffering.max.kbytes": (num_bytes >> 9) + 1000,
        }
    )
    producer.produce(
        topic, bytes(num_bytes), partition=0, on_delivery=lambda error, _: refusals.append(error)
    )
    producer.flush(60)
    assert refusals == [None]


def read_some(broker: KafkaBroker, topic: str) -> list[Record]:
    with broker.consumer(client_id="reader") as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        return wait_until(lambda: consumer.poll(0.5), 60, "a record")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_that_others_have_compressed_are_read(confluent_broker: KafkaBroker, codec: str) -> None:
    topic = a_topic(confluent_broker, max_message_bytes=str(1 << 20))
    write_compressed(confluent_broker, topic, codec, 2 << 20)
    (record,) = read_some(confluent_broker, topic)
    assert record.value == bytes(2 << 20)


@pytest.mark.slow
def test_a_batch_of_zstd_that_inflates_beyond_the_bound_ends_the_reader_by_name(
    confluent_broker: KafkaBroker,
) -> None:
    topic = a_topic(confluent_broker, max_message_bytes=str(1 << 20))
    write_compressed(confluent_broker, topic, "zstd", beyond_the_bound)
    with pytest.raises(BrokerError, match=f'{topic} partition 0: .*set broker.client to "auto"'):
        read_some(confluent_broker, topic)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
def test_only_kafka_python_bounds_what_a_batch_of_the_other_codecs_inflates_to(
    confluent_broker: KafkaBroker, kafka_broker: KafkaBroker, codec: str
) -> None:
    """Why broker.client = "auto" reads with kafka-python; docs/kafka-clients.md says so."""
    topic = a_topic(confluent_broker, max_message_bytes=str(16 << 20))
    write_compressed(confluent_broker, topic, codec, beyond_the_bound)
    (set_aside,) = read_some(kafka_broker, topic)
    assert set_aside.unread is not None
    assert set_aside.unread.num_bytes < 16 << 20
    (inflated,) = read_some(confluent_broker, topic)
    assert inflated.value is not None
    assert len(inflated.value) == beyond_the_bound
