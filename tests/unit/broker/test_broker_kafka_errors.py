"""What the Kafka client's exceptions become."""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest

from rollog.kernel.broker.kafka_errors import translated, translating
from rollog.kernel.errors import (
    BrokerError,
    BrokerTimeout,
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
    assert text.endswith("`rollog topics acls` prints those of each role")
    assert len(text) < 200
