"""What a reader through confluent-kafka makes of batches that are not rollog's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kafka
import pytest
from support.broker_topics import a_topic
from support.waiting import wait_until

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import BrokerError

if TYPE_CHECKING:
    from rollog.kernel.broker.kafka import KafkaBroker

pytestmark = pytest.mark.broker


def write_compressed(broker: KafkaBroker, topic: str, codec: str, num_bytes: int) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.address, compression_type=codec, max_request_size=num_bytes + 1000
    )
    producer.send(topic, bytes(num_bytes), partition=0).get(60)
    producer.close()


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_batches_that_others_have_compressed_are_read(confluent_broker: KafkaBroker, codec: str) -> None:
    topic = a_topic(confluent_broker, max_message_bytes=str(1 << 20))
    write_compressed(confluent_broker, topic, codec, 2 << 20)
    with confluent_broker.consumer(client_id="reader") as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        (record,) = wait_until(lambda: consumer.poll(0.5), message="the record")
    assert record.value == bytes(2 << 20)


@pytest.mark.slow
def test_a_batch_of_zstd_that_inflates_beyond_the_bound_ends_the_reader_by_name(
    confluent_broker: KafkaBroker,
) -> None:
    topic = a_topic(confluent_broker, max_message_bytes=str(1 << 20))
    write_compressed(confluent_broker, topic, "zstd", 200 << 20)
    with confluent_broker.consumer(client_id="reader") as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        with pytest.raises(BrokerError, match=f'{topic} partition 0: .*set broker.client to "auto"'):
            wait_until(lambda: consumer.poll(0.5), message="an error")
