"""The first transaction with offsets on a new cluster, which makes the topic of consumer groups only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.kafka_lines import KafkaNode, java_for, kafka_jars, lines

from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.ports import TopicPartition, TopicSpec

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.clients import ClientName

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(400)]

many_partitions = {"offsets.topic.num.partitions": "100"}
"""To make them takes long enough that the first answers name no coordinator."""


patience_seconds = 110.0
"""Of the transaction: a machine with other work takes long to make the partitions."""


@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
def test_offsets_of_a_group_that_nobody_coordinates_yet_are_committed(
    client: ClientName, tmp_path: Path, cache_directory: Path
) -> None:
    if client == "confluent":
        pytest.importorskip("confluent_kafka")
    newest = lines[-1]
    place = TopicPartition("first", 0)
    with KafkaNode(java_for(newest), kafka_jars(newest, cache_directory), tmp_path, many_partitions) as node:
        broker = KafkaBroker(node.address, client=client)
        with broker.admin() as admin:
            admin.create_topics([TopicSpec(name=place.topic, num_partitions=1, config={})])
        with broker.transactional_producer(
            "first-of-all", topics=[place.topic], transaction_timeout_seconds=patience_seconds
        ) as producer:
            producer.begin()
            producer.send(place.topic, place.partition, b"one").offset(60)
            producer.send_offsets({place: 1}, "first-group")
            producer.commit(patience_seconds)
        with broker.consumer(client_id="reader") as consumer:
            assert consumer.end_offsets([place]) == {place: 2}
