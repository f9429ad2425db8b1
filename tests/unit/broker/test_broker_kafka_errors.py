"""What the Kafka client's exceptions become."""

from __future__ import annotations

from typing import ClassVar

import kafka.errors as kafka_errors
import pytest

from rollog.kernel.broker.kafka_errors import translated, translating
from rollog.kernel.broker.kafka_topics import KafkaAdmin, TopicDirectory
from rollog.kernel.broker.refusal_watch import RefusalWatch
from rollog.kernel.broker.security import plain_text
from rollog.kernel.errors import (
    BrokerError,
    BrokerTimeout,
    BrokerUnreachable,
    NotAuthorized,
    ProducerFenced,
    RecordTooLarge,
    TopicMismatch,
)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (kafka_errors.ProducerFencedError(), ProducerFenced),
        (kafka_errors.InvalidProducerEpochError(), ProducerFenced),
        (kafka_errors.KafkaError("in an error state", kafka_errors.ProducerFencedError()), ProducerFenced),
        (kafka_errors.MessageSizeTooLargeError(), RecordTooLarge),
        (kafka_errors.RecordListTooLargeError(), RecordTooLarge),
        (kafka_errors.UnknownTopicOrPartitionError(), TopicMismatch),
        (kafka_errors.KafkaConnectionError("Connection timed out"), BrokerUnreachable),
        (kafka_errors.NodeNotReadyError(), BrokerUnreachable),
        (kafka_errors.KafkaTimeoutError("after 3 s"), BrokerTimeout),
        (kafka_errors.RequestTimedOutError(), BrokerTimeout),
        (kafka_errors.TopicAuthorizationFailedError("samples"), NotAuthorized),
        (kafka_errors.GroupAuthorizationFailedError("trainer"), NotAuthorized),
        (kafka_errors.TransactionalIdAuthorizationFailedError(), NotAuthorized),
        (kafka_errors.PolicyViolationError("too many partitions"), NotAuthorized),
        (
            kafka_errors.KafkaError("Unexpected error: [Error 31] ClusterAuthorizationFailedError"),
            NotAuthorized,
        ),
        (
            kafka_errors.KafkaError("Unexpected error: [Error 29] TopicAuthorizationFailedError"),
            NotAuthorized,
        ),
        (kafka_errors.OffsetOutOfRangeError({"samples": 3}), BrokerError),
        (kafka_errors.IllegalStateError("closed"), BrokerError),
        (OSError("no route"), BrokerError),
    ],
)
def test_each_error_has_one_meaning_and_says_where(error: Exception, meaning: type[BrokerError]) -> None:
    with pytest.raises(BrokerError) as caught, translating("sending to samples"):
        raise error
    assert type(caught.value) is meaning
    assert str(caught.value).startswith("sending to samples: ")


def test_errors_of_ours_pass_unchanged() -> None:
    ours = RecordTooLarge("over the limit")
    assert translated(ours, "anywhere") is ours


def test_a_denied_topic_is_told_without_the_dump_of_the_request() -> None:
    dump = f"Request 'CreateTopicsRequest({'x' * 700})' failed with response 'CreateTopicsResponse({'y' * 300})'."
    text = str(
        translated(kafka_errors.TopicAuthorizationFailedError(dump), "creating topic rollog.first.samples")
    )
    assert text.startswith("creating topic rollog.first.samples: TopicAuthorizationFailedError: ")
    assert text.endswith("; grant the right: `rollog topics acls`")
    assert len(text) < 220


class BrokenConnections:
    """Stands for the library's admin client, of which the first ones lose their connection."""

    def __init__(self) -> None:
        self.num_made = 0

    def admin(self) -> KafkaAdmin:
        self.num_made += 1
        refusals = RefusalWatch("localhost:1", plain_text)
        return KafkaAdmin(Library(is_broken=self.num_made < 3), refusals)


class Library:
    """What `KafkaAdmin` calls when it describes a topic."""

    config: ClassVar = {"bootstrap_servers": ["localhost:1"]}

    def __init__(self, *, is_broken: bool) -> None:
        self._is_broken = is_broken

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(range(100), (0, 99))

    def describe_topics(self, names: list[str]) -> list[dict[str, object]]:
        if self._is_broken:
            raise kafka_errors.KafkaConnectionError("Connection timed out")
        return [{"name": name, "error_code": 0, "partitions": [{"replica_nodes": [1]}] * 3} for name in names]

    def describe_configs(self, _resources: list[object], **_options: object) -> dict[object, object]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


def test_a_connection_that_breaks_while_a_topic_is_described_is_made_again() -> None:
    connections = BrokenConnections()
    directory = TopicDirectory(connections.admin, 1 << 20)
    assert directory.facts("samples").num_partitions == 3
    assert connections.num_made == 3
