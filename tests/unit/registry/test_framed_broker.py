"""Records with schema ids on the log are the same records for whoever reads through the framing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.broker_topics import read_to_end
from support.builders import a_sample
from support.registered_schemas import registered_run
from support.small_registry import SmallRegistry, Trouble, small_registry
from support.waiting import wait_until

from rollog.kernel.broker.ports import Record, TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.kernel.errors import ConfigError, RegistryRefused, RegistryUnreachable
from rollog.kernel.registry.framed_broker import FramedBroker
from rollog.kernel.registry.wire_format import fingerprint_of, schema_header, schema_id_of
from schemas import Fence, Sample
from schemas.catalogue import load_catalogue
from schemas.codec import SchemaError, decode, decode_as, encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.ports import Broker, Consumer
    from rollog.kernel.broker.topics import RunTopics


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as served:
        yield served


@pytest.fixture
def framed(memory_broker: MemoryBroker, registry: SmallRegistry, run_topics: RunTopics) -> FramedBroker:
    return registered_run(memory_broker, registry, run_topics)


def write(broker: Broker, topic: str, *values: bytes | None, partition: int = 0, key: bytes = b"k") -> None:
    with broker.producer(client_id="writer") as producer:
        for value in values:
            producer.send(topic, partition, value, key=key, headers=[("h", b"v")])
        producer.flush(10)


def in_wire_format(schema_id: int, value: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + value[10:]


def id_of(registry: SmallRegistry, name: str) -> int:
    """The id of the schema in force of a record."""
    definition = load_catalogue().current[name].definition
    return next(number for number, text in enumerate(registry.texts, 1) if json.loads(text) == definition)


def test_the_log_has_ids_and_readers_have_fingerprints(
    framed: FramedBroker, memory_broker: MemoryBroker, registry: SmallRegistry, run_topics: RunTopics
) -> None:
    value = encode(a_sample())
    write(framed, run_topics.samples, value)
    (stored,) = read_to_end(memory_broker, run_topics.samples)
    schema_id = schema_id_of(stored.value)
    assert schema_id is not None
    assert stored.value == in_wire_format(schema_id, value)
    assert stored.header(schema_header) == fingerprint_of(value)
    (read,) = read_to_end(framed, run_topics.samples)
    assert (read.value, read.headers, read.key) == (value, [("h", b"v")], b"k")
    assert read.timestamp_ms == stored.timestamp_ms
    subject = registry.subjects[f"{run_topics.samples}-value"]
    assert schema_id in subject


def test_each_record_of_a_topic_with_several_has_its_own_subject(
    framed: FramedBroker, registry: SmallRegistry, run_topics: RunTopics, memory_broker: MemoryBroker
) -> None:
    write(framed, run_topics.tasks, encode(Fence(epoch=3)))
    (stored,) = read_to_end(memory_broker, run_topics.tasks)
    assert schema_id_of(stored.value) in registry.subjects[f"{run_topics.tasks}-rollog.Fence"]
    (read,) = read_to_end(framed, run_topics.tasks)
    assert decode_as(Fence, read.value or b"") == Fence(epoch=3)


def test_after_the_start_nothing_of_our_own_needs_the_registry(
    framed: FramedBroker, registry: SmallRegistry, run_topics: RunTopics
) -> None:
    registry.trouble, asked = Trouble.FAILING, len(registry.asked)
    write(framed, run_topics.samples, encode(a_sample()))
    assert decode(read_to_end(framed, run_topics.samples)[0].value or b"") == a_sample()
    assert len(registry.asked) == asked


def test_our_own_records_are_read_where_no_registry_is_known(
    framed: FramedBroker, memory_broker: MemoryBroker, run_topics: RunTopics
) -> None:
    write(framed, run_topics.samples, encode(a_sample()))
    (read,) = read_to_end(FramedBroker(memory_broker, None), run_topics.samples)
    assert decode(read.value or b"") == a_sample()
    with pytest.raises(ConfigError, match=r"registry\.url"):
        write(FramedBroker(memory_broker, None), run_topics.samples, encode(a_sample()))


def test_what_others_wrote_with_an_id_is_read_and_each_id_is_asked_once(
    framed: FramedBroker, memory_broker: MemoryBroker, registry: SmallRegistry, run_topics: RunTopics
) -> None:
    value = in_wire_format(id_of(registry, "WeightVersion"), bytes(10) + b"body")
    write(memory_broker, run_topics.weights, value, value)
    asked = len(registry.asked)
    read = read_to_end(framed, run_topics.weights)
    fingerprint = load_catalogue().current["WeightVersion"].fingerprint
    assert [each.value for each in read] == [b"\xc3\x01" + fingerprint + b"body"] * 2
    assert registry.asked[asked:] == [f"GET /schemas/ids/{id_of(registry, 'WeightVersion')}"]
    with pytest.raises(ConfigError, match=rf"{run_topics.weights}, partition 0, offset 0 .*registry\.url"):
        read_to_end(FramedBroker(memory_broker, None), run_topics.weights)


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"record","name":"Foreign","fields":[]}',
        '{"type":"record","name":"Sample","namespace":"rollog","fields":[]}',
    ],
)
def test_a_schema_that_is_none_of_ours_is_named_by_its_fingerprint(
    framed: FramedBroker,
    memory_broker: MemoryBroker,
    registry: SmallRegistry,
    run_topics: RunTopics,
    text: str,
) -> None:
    write(memory_broker, run_topics.samples, in_wire_format(registry.add(text), bytes(12)))
    (read,) = read_to_end(framed, run_topics.samples)
    with pytest.raises(SchemaError, match=r"no schema with fingerprint [0-9a-f]{16} is known here"):
        decode(read.value or b"")


@pytest.mark.parametrize("text", ["nonsense", '"bytes"', '{"type":"record"}', "[" * 3000, "{}", "7"])
def test_an_id_without_a_schema_leaves_the_record_as_it_is(
    framed: FramedBroker,
    memory_broker: MemoryBroker,
    registry: SmallRegistry,
    run_topics: RunTopics,
    text: str,
) -> None:
    known = in_wire_format(registry.add(text), bytes(12))
    unknown = in_wire_format(2**31, bytes(12))
    write(memory_broker, run_topics.samples, known, unknown)
    read = read_to_end(framed, run_topics.samples)
    assert [each.value for each in read] == [known, unknown]
    with pytest.raises(SchemaError, match=r"begin with 00 and the id 2147483648.*no Avro schema of that id"):
        decode(unknown)


def test_what_is_no_record_of_ours_passes_unchanged_both_ways(
    framed: FramedBroker, memory_broker: MemoryBroker, run_topics: RunTopics
) -> None:
    passed = [None, b"", b"\x00\x01", b"hello", b"\xc3\x01", b"\xc3\x01" + bytes(20)]
    write(framed, run_topics.workers, *passed)
    assert [each.value for each in read_to_end(memory_broker, run_topics.workers)] == passed
    assert [each.value for each in read_to_end(framed, run_topics.workers)] == passed


def test_both_framings_may_stand_on_one_topic(
    framed: FramedBroker, memory_broker: MemoryBroker, run_topics: RunTopics
) -> None:
    write(memory_broker, run_topics.samples, encode(a_sample()))
    write(framed, run_topics.samples, encode(a_sample()))
    assert {each.value for each in read_to_end(framed, run_topics.samples)} == {encode(a_sample())}


def test_a_header_of_another_length_is_not_believed(
    framed: FramedBroker, memory_broker: MemoryBroker, registry: SmallRegistry, run_topics: RunTopics
) -> None:
    value = in_wire_format(id_of(registry, "WeightVersion"), bytes(10) + b"body")
    with memory_broker.producer(client_id="writer") as producer:
        producer.send(run_topics.weights, 0, value, headers=[(schema_header, b"short")]).offset(10)
    (read,) = read_to_end(framed, run_topics.weights)
    assert fingerprint_of(read.value) == load_catalogue().current["WeightVersion"].fingerprint


def test_transactions_are_framed_too(
    framed: FramedBroker, memory_broker: MemoryBroker, run_topics: RunTopics
) -> None:
    sample = a_sample()
    with framed.transactional_producer("id", topics=[run_topics.samples]) as producer:
        producer.begin()
        producer.send(run_topics.samples, 0, encode(sample), headers=headers_of(sample))
        producer.abort()
        producer.begin()
        producer.send(run_topics.samples, 0, encode(sample), headers=headers_of(sample))
        producer.send_offsets({TopicPartition(run_topics.control, 0): 7}, "group")
        producer.commit(10)
    (stored,) = read_to_end(memory_broker, run_topics.samples)
    assert schema_id_of(stored.value) is not None
    assert memory_broker.committed_offsets["group"] == {TopicPartition(run_topics.control, 0): 7}
    (read,) = read_to_end(framed, run_topics.samples)
    assert decode_as(Sample, read.value or b"") == sample


def test_a_schema_that_is_not_registered_cannot_be_written(
    memory_broker: MemoryBroker, registry: SmallRegistry, run_topics: RunTopics
) -> None:
    framed = registered_run(memory_broker, registry, run_topics)
    assert framed.ids is not None
    framed.ids._ids.clear()
    registry.subjects.clear()
    with pytest.raises(RegistryRefused, match=r"Sample .* is not registered .*topics schemas register"):
        write(framed, run_topics.samples, encode(a_sample()))


class Turned:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Turned:
    return Turned()


@pytest.fixture
def patient(
    memory_broker: MemoryBroker, registry: SmallRegistry, run_topics: RunTopics, clock: Turned
) -> FramedBroker:
    return registered_run(memory_broker, registry, run_topics, clock=clock, sleep=clock.sleep)


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def polled(consumer: Consumer, times: int) -> list[Record]:
    return [record for _ in range(times) for record in consumer.poll(0.1)]


def test_while_the_registry_is_away_only_the_partition_that_needs_it_stands_still(
    patient: FramedBroker,
    memory_broker: MemoryBroker,
    registry: SmallRegistry,
    run_topics: RunTopics,
    clock: Turned,
) -> None:
    foreign = in_wire_format(id_of(registry, "Sample"), encode(a_sample()))
    write(memory_broker, run_topics.samples, b"a", foreign, b"b", partition=0)
    write(memory_broker, run_topics.samples, b"c", partition=1)
    held, free = TopicPartition(run_topics.samples, 0), TopicPartition(run_topics.samples, 1)
    with patient.consumer(client_id="reader") as consumer:
        consumer.assign({held: 0, free: 0})
        registry.trouble = Trouble.FAILING
        assert sorted(values(polled(consumer, 3)), key=str) == [b"a", b"c"]
        assert (consumer.position(held), consumer.position(free)) == (1, 1)
        write(memory_broker, run_topics.samples, b"d", partition=1)
        assert values(polled(consumer, 2)) == [b"d"]
        asked = len(registry.asked)
        polled(consumer, 2)
        assert len(registry.asked) == asked  # the pause after a failure is kept
        registry.trouble = None
        assert polled(consumer, 1) == []
        clock.sleep(1.0)
        read = values(polled(consumer, 2))
        assert [fingerprint_of(value) for value in read] == [
            load_catalogue().current["Sample"].fingerprint,
            None,
        ]
        assert read[1] == b"b"
        assert consumer.position(held) == 3


def test_where_every_partition_stands_still_a_poll_takes_its_time_and_pauses_grow(
    patient: FramedBroker,
    memory_broker: MemoryBroker,
    registry: SmallRegistry,
    run_topics: RunTopics,
    clock: Turned,
) -> None:
    write(memory_broker, run_topics.samples, in_wire_format(id_of(registry, "Sample"), encode(a_sample())))
    place = TopicPartition(run_topics.samples, 0)
    with patient.consumer(client_id="reader") as consumer:
        consumer.assign({place: 0})
        registry.trouble, begin, before = Trouble.FAILING, clock.now, len(registry.asked)
        while clock.now < begin + 60:
            assert consumer.poll(0.5) == []
        assert 5 < len(registry.asked) - before < 12
        assert consumer.position(place) == 0
        registry.trouble = None
        clock.sleep(15.0)
        assert len(consumer.poll(0.5)) == 1
        consumer.assign({})
        assert consumer.poll(0.01) == []


def test_a_registry_that_is_slow_holds_up_no_reader(
    memory_broker: MemoryBroker, registry: SmallRegistry, run_topics: RunTopics
) -> None:
    """Its answer takes a minute, and other partitions are read meanwhile."""
    framed = registered_run(
        memory_broker, registry, run_topics, timeout_seconds=60.0, wait_seconds=0.0, sleep=lambda _: None
    )
    value = in_wire_format(id_of(registry, "Sample"), encode(a_sample()))
    held, free = (TopicPartition(run_topics.samples, number) for number in range(2))
    write(memory_broker, run_topics.samples, value)
    registry.trouble = Trouble.SILENT
    with framed.consumer(client_id="reader") as consumer:
        consumer.assign({held: 0, free: 0})
        assert polled(consumer, 2) == []
        assert "has not said yet what schema id" in str(consumer.held_back())
        for number in range(3):
            write(memory_broker, run_topics.samples, b"a", partition=1)
            assert values(polled(consumer, 2)) == [b"a"], number
        question = f"GET /schemas/ids/{id_of(registry, 'Sample')}"
        wait_until(lambda: question in registry.asked, 30, "the question")
        assert polled(consumer, 2) == []
        assert registry.asked.count(question) == 1
        assert (consumer.position(held), consumer.position(free)) == (0, 3)
        registry.over.set()  # it answers, with nothing
        registry.trouble = None
        read = wait_until(lambda: polled(consumer, 2), 30, "the record that was held back")
    assert fingerprint_of(read[0].value) == load_catalogue().current["Sample"].fingerprint


def test_whoever_reads_to_the_end_is_told_that_it_is_the_registry_that_does_not_answer(
    framed: FramedBroker, memory_broker: MemoryBroker, registry: SmallRegistry, run_topics: RunTopics
) -> None:
    write(memory_broker, run_topics.samples, in_wire_format(id_of(registry, "Sample"), encode(a_sample())))
    registry.trouble = Trouble.FAILING
    place = TopicPartition(run_topics.samples, 0)
    with (
        framed.consumer(client_id="reader") as consumer,
        pytest.raises(RegistryUnreachable, match=r"samples\[0\] at offset 0 of 1; .*no leader"),
    ):
        list(read_until(consumer, {place: 0}, {place: 1}, stalls_after_seconds=0.3))


def test_an_id_that_is_unknown_is_asked_for_again_after_a_minute(
    patient: FramedBroker, registry: SmallRegistry, clock: Turned
) -> None:
    assert patient.ids is not None
    next_id = len(registry.texts) + 1
    assert patient.ids.fingerprint_of(next_id) is None
    registry.add('{"type":"record","name":"Late","fields":[]}')
    assert patient.ids.fingerprint_of(next_id) is None
    clock.sleep(61.0)
    assert patient.ids.fingerprint_of(next_id) is not None
