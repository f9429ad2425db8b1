"""Objects of large samples at the trainer: when a sample is judged, when it is dead, and when it only waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from support.builders import a_sample, num_partitions
from support.large_samples import object_of, stored

from rollog.kernel.broker.ports import Record
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.weights import WeightsStore
from rollog.rules.headers import SampleLimits, header_of
from schemas import Sample, int32_array
from trainer.buffer.payload_fetches import PayloadFetches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.rules.headers import SampleHeader

topics = RunTopics("rollog-test", "run")
limits = SampleLimits(num_partitions=num_partitions, num_replicas=8, temperature=1.0, num_vocabulary=1000)
most_bytes = 1000


@dataclass
class Fetches:
    """Fetches from a store on this disk, with a clock that is turned by hand."""

    place: Path
    now: float = 0.0
    offset: int = 0
    store: PayloadStore = field(init=False)
    fetches: PayloadFetches = field(init=False)

    def __post_init__(self) -> None:
        weights = WeightsStore(str(self.place))
        weights.publish(0, b"weights")
        self.store = PayloadStore(weights, topics)
        self.fetches = PayloadFetches(
            self.store,
            limits,
            max_payload_bytes=most_bytes,
            max_wait_seconds=60.0,
            clock=lambda: self.now,
        )

    def add(self, record: Sample, partition: int = 0) -> SampleHeader:
        header = header_of(record, partition=partition, offset=self.offset, digest=b"", limits=limits)
        self.offset += 1
        self.fetches.add(
            Record(topic="samples", partition=partition, offset=header.offset, value=b""), header, record
        )
        return header

    def decided(self, at: float) -> list[tuple[SampleHeader, Sample | None]]:
        self.now = at
        return [(header, sample) for _, header, sample in self.fetches.decided(10.0)]


@pytest.fixture
def fetching(tmp_path: Path) -> Iterator[Fetches]:
    made = Fetches(tmp_path / "store")
    with made.fetches:
        yield made


def test_more_objects_than_are_fetched_at_once_come_out_whole_and_by_place(fetching: Fetches) -> None:
    samples = [a_sample(0, replica) for replica in range(8)]
    headers = [fetching.add(stored(sample, fetching.store)) for sample in samples]
    found = fetching.decided(at=0.0)
    assert [header.place for header, _ in found] == [header.place for header in headers]
    assert [sample for _, sample in found] == samples
    assert {header.defect for header, _ in found} == {None}
    assert not fetching.fetches.num_waiting


def test_only_the_time_in_which_the_store_says_that_it_has_it_not_counts(fetching: Fetches) -> None:
    record = stored(a_sample(0, 0), fetching.store)
    object_of(record, fetching.place, topics).unlink()
    fetching.add(record)
    away = fetching.place.with_name("away")
    assert fetching.decided(at=0.0) == []
    assert fetching.decided(at=20.0) == []
    assert fetching.fetches.longest_missing_seconds == 20.0
    fetching.place.rename(away)
    for now in (30.0, 1000.0, 3600.0):
        assert fetching.decided(at=now) == []
        assert "cannot be read" in (fetching.fetches.silence or "")
    away.rename(fetching.place)
    for now in (3601.0, 3640.0):
        assert fetching.decided(at=now) == []
        assert fetching.fetches.silence is None
    ((header, sample),) = fetching.decided(at=3641.0)
    assert sample is None
    assert (header.defect or "").startswith("payload_missing: ")
    assert (header.group_id, header.replica) == (0, 0), "the attempt counts"


def test_a_store_is_not_asked_again_at_once(fetching: Fetches) -> None:
    record = stored(a_sample(0, 0), fetching.store)
    path = object_of(record, fetching.place, topics)
    data = path.read_bytes()
    path.unlink()
    fetching.add(record)
    assert fetching.decided(at=0.0) == []
    path.write_bytes(data)
    assert fetching.decided(at=0.5) == []
    ((header, _),) = fetching.decided(at=1.0)
    assert header.defect is None


def test_what_is_wrong_inside_of_an_object_is_found_as_in_a_record(fetching: Fetches) -> None:
    foreign = a_sample(0, 0, prompt_token_ids=int32_array([1, 5000]))
    fetching.add(stored(foreign, fetching.store))
    ((header, sample),) = fetching.decided(at=0.0)
    assert sample is None
    assert "prompt_token_ids[1] is 5000, outside the model's vocabulary" in (header.defect or "")


def test_an_object_that_is_named_as_larger_than_allowed_is_not_read(fetching: Fetches) -> None:
    large = a_sample(0, 0, response_text="x" * most_bytes)
    record = stored(large, fetching.store)
    object_of(record, fetching.place, topics).unlink()
    fetching.add(record)
    ((header, _),) = fetching.decided(at=0.0)
    assert "more than broker.max_payload_bytes = 1000" in (header.defect or "")


def test_what_waits_is_bounded_and_holds_the_marks_down(fetching: Fetches) -> None:
    record = stored(a_sample(0, 0), fetching.store)
    object_of(record, fetching.place, topics).unlink()
    fetching.offset = 7
    fetching.add(record, partition=1)
    were_full = []
    for _ in range(255):
        were_full.append(fetching.fetches.is_full)
        fetching.add(record, partition=0)
    assert not any(were_full)
    assert fetching.fetches.is_full
    assert fetching.fetches.lowest_offsets() == {0: 8, 1: 7}
