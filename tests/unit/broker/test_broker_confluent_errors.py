"""What confluent-kafka's errors become, and what its clients say outside of calls."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

confluent_kafka = pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException, TopicPartition  # noqa: E402 - where it is installed

from rollog.kernel.broker.confluent_errors import CommitReports, LastErrors, translated  # noqa: E402
from rollog.kernel.broker.confluent_producer import ConfluentDelivery, ConfluentSending  # noqa: E402
from rollog.kernel.broker.confluent_transactions import ConfluentTransactions  # noqa: E402
from rollog.kernel.broker.ports import TopicPartition as Place  # noqa: E402
from rollog.kernel.errors import (  # noqa: E402
    BrokerError,
    BrokerRefused,
    BrokerTimeout,
    NotAuthorized,
    ProducerFenced,
    RecordTooLarge,
    TopicMismatch,
)


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (KafkaError._FENCED, ProducerFenced),
        (KafkaError.INVALID_PRODUCER_EPOCH, ProducerFenced),
        (KafkaError.MSG_SIZE_TOO_LARGE, RecordTooLarge),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMismatch),
        (KafkaError._AUTHENTICATION, BrokerRefused),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAuthorized),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, NotAuthorized),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NotAuthorized),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, NotAuthorized),
        (KafkaError.POLICY_VIOLATION, NotAuthorized),
        (KafkaError._MSG_TIMED_OUT, BrokerTimeout),
        (KafkaError.OFFSET_OUT_OF_RANGE, BrokerError),
        (KafkaError._BAD_COMPRESSION, BrokerError),
    ],
)
def test_each_error_has_one_meaning_and_says_where(code: int, meaning: type[BrokerError]) -> None:
    error = translated(KafkaError(code, "reason"), "sending to samples")
    assert type(error) is meaning
    assert str(error).startswith("sending to samples: ")
    assert "reason" in str(error)


class RefusedProducer:
    """librdkafka's, which the cluster has refused: calls say that it has ended, the next poll says why."""

    def produce(self, *_: Any, **__: Any) -> NoReturn:
        raise KafkaException(KafkaError(KafkaError._FATAL, "Fatal error"))

    def poll(self, _: float) -> NoReturn:
        raise KafkaException(
            KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no right to write", fatal=True)
        )


def test_a_producer_that_was_refused_before_its_first_record_says_why() -> None:
    sending = ConfluentSending(RefusedProducer(), LastErrors("writer"))
    with pytest.raises(NotAuthorized, match=r"sending a record to samples: .*no right to write"):
        sending.send("samples", 0, b"x", None, ())


def test_a_record_that_was_given_up_with_its_producer_says_why() -> None:
    delivery = ConfluentDelivery(ConfluentSending(RefusedProducer(), LastErrors("writer")), "samples")
    delivery.told(KafkaError(KafkaError._PURGE_QUEUE, "purged"), None)
    with pytest.raises(NotAuthorized, match="no right to write"):
        delivery.offset(1.0)


class CoordinatedGroups:
    """What asks brokers for transactions; here groups alone, which are coordinated at once."""

    def await_group(self, group_id: str, deadline: float) -> None:
        """Nothing to wait for."""


class RefusedMeanwhile:
    """librdkafka's, which learns during a call that a record was refused: only the next call says so."""

    def __init__(self) -> None:
        self.codes = iter((KafkaError._STATE, KafkaError.TOPIC_AUTHORIZATION_FAILED))

    def send_offsets_to_transaction(self, *_: Any) -> NoReturn:
        raise KafkaException(KafkaError(next(self.codes), "Failed to commit offsets to transaction"))


def test_a_record_that_is_refused_while_offsets_are_added_is_named() -> None:
    nobody: Any = None
    groups: Any = CoordinatedGroups()
    transactions = ConfluentTransactions(
        RefusedMeanwhile(),
        LastErrors("trainer"),
        "trainer",
        decisions=groups,
        first_offsets={},
        predecessor=nobody,
    )
    offsets = {Place("samples", 0): 7}
    with pytest.raises(NotAuthorized, match="adding offsets of group trainers to a transaction"):
        transactions.send_offsets(offsets, "trainers", time.monotonic() + 30)


@dataclass
class RefusedPlace:
    """A topic and partition as the library reports it."""

    error: KafkaError


def test_offsets_that_may_not_be_committed_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    commits = CommitReports("workers")
    commits(None, [TopicPartition("tasks", 0, 7)])
    commits(KafkaError(KafkaError._WAIT_COORD, "away"), [])
    assert caplog.messages == []
    denied = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "denied")
    for _ in range(3):
        commits(denied, [TopicPartition("tasks", 0, 7)])
    (told,) = caplog.messages
    assert "committing offsets under group workers" in told
    assert "rollog topics acls" in told


def test_a_refusal_of_one_place_is_told_and_that_of_no_group_is_not(caplog: pytest.LogCaptureFixture) -> None:
    CommitReports(None).failed(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "denied"))
    assert caplog.messages == []
    CommitReports("workers")(
        None, [RefusedPlace(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied"))]
    )
    assert len(caplog.messages) == 1
