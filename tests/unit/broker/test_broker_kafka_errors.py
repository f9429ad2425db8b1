"""What the Kafka client's exceptions become."""

from __future__ import annotations

import socketserver
from typing import TYPE_CHECKING, ClassVar

import kafka.errors as kafka_errors
import pytest
from support.tls_server import tls_server

from rollog.kernel.broker.kafka_errors import translated, translating
from rollog.kernel.broker.kafka_topics import KafkaAdmin, TopicDirectory
from rollog.kernel.broker.ports import TopicSpec
from rollog.kernel.broker.refusal_watch import RefusalWatch
from rollog.kernel.broker.security import Protocol, SecuritySettings, plain_text
from rollog.kernel.errors import (
    BrokerError,
    BrokerRefused,
    BrokerTimeout,
    BrokerUnreachable,
    NotAuthorized,
    ProducerFenced,
    RecordTooLarge,
    TopicMismatch,
)

if TYPE_CHECKING:
    from support.certificates import Authority

cut_off = kafka_errors.KafkaConnectionError("Connection timed out")


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
        return KafkaAdmin(Library(cut_off if self.num_made < 3 else None), refusals)


class Library:
    """What `KafkaAdmin` calls; `error` is what describing and creating topics raise."""

    config: ClassVar = {"bootstrap_servers": ["localhost:1"]}

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(range(100), (0, 99))

    def describe_topics(self, names: list[str]) -> list[dict[str, object]]:
        if self._error is not None:
            raise self._error
        return [{"name": name, "error_code": 0, "partitions": [{"replica_nodes": [1]}] * 3} for name in names]

    def list_topics(self) -> list[str]:
        return []

    def create_topics(self, _topics: list[object]) -> None:
        if self._error is not None:
            raise self._error

    def describe_configs(self, _resources: list[object], **_options: object) -> dict[object, object]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


def test_a_connection_that_breaks_while_a_topic_is_described_is_made_again() -> None:
    connections = BrokenConnections()
    directory = TopicDirectory(connections.admin, 1 << 20)
    assert directory.facts("samples").num_partitions == 3
    assert connections.num_made == 3


@pytest.mark.parametrize(
    "error",
    [cut_off, kafka_errors.NodeNotReadyError(), kafka_errors.SaslAuthenticationFailedError()],
    ids=lambda error: type(error).__name__,
)
def test_a_cut_connection_of_an_admin_client_that_is_refused_is_named(
    error: Exception, authority: Authority
) -> None:
    samples = TopicSpec(name="samples", num_partitions=1, replication_factor=1, config={})
    nobody_vouches = SecuritySettings(protocol=Protocol.SSL)
    with tls_server(authority, socketserver.StreamRequestHandler) as port:
        address = f"localhost:{port}"
        admin = KafkaAdmin(Library(error), RefusalWatch(address, nobody_vouches))
        with pytest.raises(BrokerRefused, match=rf"{address}: .*certificate"):
            admin.describe_topics(["samples"])
        admin = KafkaAdmin(Library(error), RefusalWatch(address, nobody_vouches))
        with pytest.raises(BrokerRefused, match=rf"{address}: .*certificate"):
            admin.create_topics([samples])


def test_a_cut_connection_of_an_admin_client_that_is_taken_says_what_was_asked() -> None:
    admin = KafkaAdmin(Library(cut_off), RefusalWatch("localhost:1", plain_text))
    with pytest.raises(BrokerUnreachable, match=r"^describing topics samples: KafkaConnectionError"):
        admin.describe_topics(["samples"])


def test_a_topic_that_somebody_else_makes_meanwhile_is_not_counted_as_made() -> None:
    library = Library(kafka_errors.TopicAlreadyExistsError())
    admin = KafkaAdmin(library, RefusalWatch("localhost:1", SecuritySettings(protocol=Protocol.SSL)))
    spec = TopicSpec(name="samples", num_partitions=1, replication_factor=1, config={})
    assert admin.create_topics([spec]) == []
