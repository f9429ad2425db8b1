"""Headers, payloads and dead letters from `samples`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.builders import a_sample, num_partitions

from rollog.kernel.broker.ports import Record, TopicPartition, TopicSpec
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import DecodeError, TopicMismatch
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.weights import WeightsStore
from rollog.rules.headers import SampleLimits
from rollog.rules.reading import read_sample
from schemas import Kind, Status
from schemas.codec import encode
from schemas.headers import headers_of
from trainer.buffer.payload_fetches import PayloadFetches
from trainer.buffer.sample_stream import SampleStream, check_retained

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.rules.headers import SampleHeader
    from schemas import Sample

topic = "samples"
limits = SampleLimits(num_partitions=num_partitions, num_replicas=8, temperature=1.0)


class Known:
    """Knows every sample's task, as soon as it has been asked `num_looks` times."""

    def __init__(self, num_looks: int = 1) -> None:
        self.num_looks = num_looks

    def can_place(self, arrived: Iterable[tuple[SampleHeader, Sample | None]], _timeout: float) -> bool:
        self.num_looks -= bool(list(arrived))
        return self.num_looks <= 0

    def placed(self, header: SampleHeader, _sample: Sample | None) -> SampleHeader:
        return header


def a_broker(memory_broker: MemoryBroker) -> MemoryBroker:
    with memory_broker.admin() as admin:
        admin.create_topics([TopicSpec(name=topic, num_partitions=num_partitions)])
    return memory_broker


def a_stream(broker: MemoryBroker, marks: tuple[int, ...] = (0,) * num_partitions) -> SampleStream:
    return SampleStream(
        broker,
        topic,
        marks,
        group_id="g",
        limits=limits,
        origins=Known(),
        payloads=PayloadFetches(
            PayloadStore(WeightsStore("memory://stream"), RunTopics("rollog", "stream")),
            limits,
            max_payload_bytes=1 << 20,
            max_wait_seconds=60.0,
        ),
        max_dead_letters_in_a_row=3,
    )


def write(broker: MemoryBroker, partition: int, *values: bytes) -> None:
    with broker.producer(client_id="test") as producer:
        for value in values:
            producer.send(topic, partition, value)
        producer.flush(1.0)


def stored(sample: Sample, *, partition: int = 0, value: bytes | None = None) -> Record:
    return Record(
        topic=topic,
        partition=partition,
        offset=7,
        value=encode(sample) if value is None else value,
        headers=headers_of(sample),
    )


def test_what_the_newest_failure_said_is_kept(memory_broker: MemoryBroker) -> None:
    broker = a_broker(memory_broker)
    failed = a_sample(0, 0, status=Status.FAILED, error_class="EngineError", error_message="70 prompt tokens")
    write(broker, 0, encode(failed), encode(a_sample(0, 1)))
    with a_stream(broker) as stream:
        assert stream.newest_failure is None
        stream.poll(1.0)
        assert stream.newest_failure == "EngineError: 70 prompt tokens"


def test_payloads_are_held_until_their_verdict_is_committed(memory_broker: MemoryBroker) -> None:
    broker = a_broker(memory_broker)
    write(broker, 1, encode(a_sample(1, 0)), encode(a_sample(1, 1)))
    with a_stream(broker) as stream:
        headers = stream.poll(1.0)
        assert [sample.replica for sample in stream.samples(headers)] == [0, 1]
        assert stream.positions == stream.end_offsets() == (0, 2, 0, 0)
        stream.release([headers[0].place])
        with pytest.raises(KeyError):
            stream.samples(headers)


def test_bytes_that_are_no_sample_become_a_dead_letter_with_the_identity_of_their_headers() -> None:
    header, sample = read_sample(stored(a_sample(4, 1), value=b"garbage"), limits)
    assert sample is None
    assert (header.group_id, header.replica, header.task_id) == (4, 1, "1.401")
    assert header.defect is not None
    assert "not a sample" in header.defect


def test_headers_that_are_no_numbers_identify_nothing() -> None:
    record = Record(
        topic=topic,
        partition=0,
        offset=0,
        value=None,
        headers=[("group_id", b"\xff"), ("replica", b"9" * 30)],
    )
    header, _ = read_sample(record, limits)
    assert (header.group_id, header.replica) == (-1, -1)


@pytest.mark.parametrize(
    ("sample", "partition", "defect"),
    [
        (a_sample(0, kind=Kind.EVALUATION), 0, "kind evaluation"),
        (a_sample(1), 0, "belongs on partition 1"),
        (a_sample(0, reward=None), 0, "reward None"),
        (a_sample(0, -1, status=Status.FAILED), 0, "negative identity"),
        (a_sample(0, 8), 0, "replica 8 of a group that has 8"),
    ],
)
def test_valid_bytes_in_the_wrong_place_are_dead_too(sample: Sample, partition: int, defect: str) -> None:
    header, payload = read_sample(stored(sample, partition=partition), limits)
    assert payload is None
    assert header.defect is not None
    assert defect in header.defect


def test_dead_records_bring_their_letter_with_bytes_and_place(memory_broker: MemoryBroker) -> None:
    broker = a_broker(memory_broker)
    write(broker, 2, b"garbage")
    with a_stream(broker) as stream:
        (header,) = stream.poll(1.0)
        (letter,) = stream.dead_letters([header.place])
        assert (letter.topic, letter.partition, letter.offset, letter.value) == (topic, 2, 0, b"garbage")
        with pytest.raises(KeyError):
            stream.samples([header])
        stream.release([header.place])
        assert stream.dead_letters([header.place]) == []


def test_a_topic_cut_off_above_the_low_water_mark_is_refused(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = a_broker(memory_broker)
    consumer = broker.consumer(client_id="test")
    beginnings = {TopicPartition(topic, number): 5 for number in range(num_partitions)}
    monkeypatch.setattr(type(consumer), "beginning_offsets", lambda *_: beginnings)
    marks = (5, 3, 5, 5)
    with pytest.raises(TopicMismatch, match="offset 3 to 4"):
        check_retained(broker, topic, marks)


def test_a_flood_of_dead_letters_ends_reading_and_a_good_sample_between_them_does_not(
    memory_broker: MemoryBroker,
) -> None:
    broker = a_broker(memory_broker)
    good = encode(a_sample(2, 0))
    write(broker, 2, b"bad", b"bad", b"bad", good, b"bad", b"bad", b"bad")
    with a_stream(broker) as stream:
        assert len(stream.poll(1.0)) == 7
        write(broker, 2, b"bad")
        with pytest.raises(DecodeError, match=r"4 records in a row on samples .*partition 2, offset 7"):
            stream.poll(1.0)
