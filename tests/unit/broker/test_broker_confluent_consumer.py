"""The consumer over confluent-kafka by what its library hands over, message by message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

confluent_kafka = pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException  # noqa: E402 - where it is installed

from rollog.kernel.broker.confluent_consumer import ConfluentConsumer  # noqa: E402
from rollog.kernel.broker.confluent_errors import CommitReports, LastErrors  # noqa: E402
from rollog.kernel.broker.ports import TopicPartition  # noqa: E402
from rollog.kernel.broker.refusal_watch import RefusalWatch  # noqa: E402
from rollog.kernel.broker.security import plain_text  # noqa: E402
from rollog.kernel.errors import (  # noqa: E402
    BrokerError,
    BrokerRefused,
    BrokerUnreachable,
    NotAuthorized,
    TopicMismatch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.kernel.broker.ports import Record

samples = [TopicPartition("samples", partition) for partition in range(3)]


@dataclass
class Message:
    """A record as the library hands it over, or an error in its place."""

    place: TopicPartition
    at: int
    trouble: KafkaError | None = None

    def error(self) -> KafkaError | None:
        return self.trouble

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.partition

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes:
        return f"{self.place.partition}/{self.at}".encode()

    def key(self) -> None:
        """There is none."""

    def headers(self) -> None:
        """There are none."""

    def timestamp(self) -> tuple[int, int]:
        return (1, 0)


@dataclass
class Library:
    """Hands over `batches`: the first message by `poll`, the others by `consume`."""

    batches: list[list[Message]]
    rest: list[Message] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)
    """What questions for offsets are answered first."""
    looked_for: list[str] = field(default_factory=list)
    """Topics whose metadata was fetched again."""

    def incremental_assign(self, places: list[Any]) -> None:
        """All places are read."""

    def poll(self, _timeout_seconds: float) -> Message | None:
        if not self.batches:
            return None
        first, *self.rest = self.batches.pop(0)
        return first

    def consume(self, most: int, _timeout_seconds: float) -> list[Message]:
        assert len(self.rest) <= most
        return self.rest

    def offsets_for_times(self, places: list[Any], _timeout_seconds: float) -> list[Any]:
        """Ends at 7, where no answer is left that says otherwise."""
        if self.refusals:
            raise KafkaException(KafkaError(self.refusals.pop(0), "reason"))
        for place in places:
            place.offset = 7
        return places

    def list_topics(self, topic: str, _timeout_seconds: float) -> None:
        self.looked_for.append(topic)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class AnyTopic:
    """A directory of topics in which every one stood, and what it says when it is asked anew."""

    anew: list[BrokerError] = field(default_factory=list)

    def require(self, topic: str, partition: int) -> None:
        """It does exist."""

    def confirm(self, _topic: str) -> None:
        if self.anew:
            raise self.anew.pop(0)


def reading(
    *batches: list[Message],
    refusals: Sequence[int] = (),
    anew: Sequence[BrokerError] = (),
    looked_for: list[str] | None = None,
) -> ConfluentConsumer:
    directory: Any = AnyTopic(list(anew))
    consumer = ConfluentConsumer(
        Library(list(batches), refusals=list(refusals), looked_for=[] if looked_for is None else looked_for),
        LastErrors("reader"),
        CommitReports(None),
        directory,
        None,
        offsets_timeout_seconds=1.0,
        refusals=RefusalWatch("localhost:1", plain_text),
    )
    consumer.assign(dict.fromkeys(samples, 0))
    return consumer


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._BAD_MSG, BrokerError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAuthorized),
        (KafkaError.OFFSET_OUT_OF_RANGE, BrokerError),
    ],
)
def test_records_behind_the_error_of_another_partition_are_returned_and_then_the_error_raised(
    code: int, kind: type[BrokerError]
) -> None:
    error = Message(samples[1], 0, KafkaError(code, "reason"))
    batch = [Message(samples[0], 0), error, Message(samples[0], 1), Message(samples[2], 0)]
    consumer = reading(batch)
    assert values(consumer.poll(0)) == [b"0/0", b"0/1", b"2/0"]
    assert [consumer.position(place) for place in samples] == [2, 0, 1]
    with pytest.raises(kind, match=r"^reading samples partition 1: .*reason"):
        consumer.poll(0)


def test_an_error_that_comes_first_is_raised_once_what_came_behind_it_is_returned() -> None:
    error = Message(samples[1], 0, KafkaError(KafkaError._BAD_MSG, "reason"))
    consumer = reading([error, Message(samples[0], 0)], [Message(samples[0], 1)])
    assert values(consumer.poll(0)) == [b"0/0"]
    with pytest.raises(BrokerError, match="partition 1"):
        consumer.poll(0)
    assert values(consumer.poll(0)) == [b"0/1"]


def test_the_end_of_a_partition_moves_its_position_past_what_is_no_record() -> None:
    end = Message(samples[1], 5, KafkaError(KafkaError._PARTITION_EOF, "end"))
    consumer = reading([Message(samples[1], 3), end, Message(samples[0], 0)])
    assert values(consumer.poll(0)) == [b"1/3", b"0/0"]
    assert [consumer.position(place) for place in samples] == [1, 5, 0]


@pytest.mark.parametrize(
    "code",
    [KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION],
)
def test_a_question_for_offsets_is_asked_again_while_a_leader_is_elected(code: int) -> None:
    consumer = reading(refusals=[code, code])
    assert consumer.end_offsets(samples) == dict.fromkeys(samples, 7)


def test_a_question_for_offsets_that_is_refused_is_not_asked_again() -> None:
    consumer = reading(refusals=[KafkaError.TOPIC_AUTHORIZATION_FAILED])
    with pytest.raises(NotAuthorized):
        consumer.end_offsets(samples)


unknown = KafkaError._UNKNOWN_PARTITION


def test_a_topic_that_the_library_does_not_know_is_looked_for_before_the_question_is_asked_again() -> None:
    """Without a connection it knows none: that is no reason to say that a topic is missing."""
    looked_for: list[str] = []
    nobody = BrokerUnreachable("nobody answers")
    consumer = reading(refusals=[unknown, unknown], anew=[nobody], looked_for=looked_for)
    assert consumer.end_offsets(samples) == dict.fromkeys(samples, 7)
    assert looked_for == ["samples"]


@pytest.mark.parametrize("cause", [TopicMismatch("it is gone"), BrokerRefused("certificate has expired")])
def test_why_the_library_does_not_know_a_topic_is_said(cause: BrokerError) -> None:
    consumer = reading(refusals=[unknown], anew=[cause])
    with pytest.raises(type(cause), match=str(cause)):
        consumer.end_offsets(samples)
