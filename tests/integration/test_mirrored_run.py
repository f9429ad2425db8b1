"""A recorded run is audited from a mirror of it, with an offset map and without; harm to the mirror is named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.mirror_copies import altered, at, doubled, lost, mirror_of, unharmed

from consumers.archive import WeightsChoice, export_archive
from consumers.audit.auditor import audit_run
from consumers.audit.mirror import with_hint, with_mirror
from consumers.ledger import ledger_entry, read_ledger
from consumers.lineage import Lineage
from consumers.mirrored import (
    OffsetMap,
    known_from_ledger,
    known_from_map,
    make_offset_map,
    read_offset_map,
    write_offset_map,
)
from rollog.kernel.archived_weights import archived_weights
from rollog.kernel.broker.archive import ArchiveBroker
from rollog.kernel.broker.mirror import MirroredBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import BrokerError, ConfigError
from schemas import RolloutTask
from schemas.codec import SchemaError, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.mirror_copies import Harm

    from consumers.audit.report import AuditReport
    from rollog.kernel.broker.ports import Broker, Record

recorded = Path(__file__).parents[1] / "data" / "recorded" / "run.zip"
alias = "source"
num_aborted = 50
"""Offsets of aborted transactions: records and markers."""


@dataclass(frozen=True)
class Original:
    """The recorded run, and the map that was made of it."""

    broker: ArchiveBroker
    offset_map: OffsetMap

    @property
    def topics(self) -> RunTopics:
        return self.broker.topics

    def mirrored(self, harm: Harm = unharmed, *, by_map: bool) -> MirroredBroker:
        mirror = mirror_of(self.broker, alias, harm)
        if by_map:
            return MirroredBroker(mirror, alias, self.offset_map.known())
        return MirroredBroker(mirror, alias, known_from_ledger(MirroredBroker(mirror, alias), self.topics))

    def taken_for_it(self) -> MirroredBroker:
        """A mirror by the original's names, and no more; a record that was never there has shifted its samples."""
        place = TopicPartition(self.topics.samples, 0)
        return MirroredBroker(mirror_of(self.broker, alias, at(place, 0, lost)), alias)

    def audit(self, broker: MirroredBroker, *, by_map: bool) -> AuditReport:
        store = archived_weights(self.broker.file)
        report = audit_run(broker, self.topics, store, has_all_files=False, settles_within_seconds=0.0)
        return with_mirror(report, broker, has_map=by_map)

    def findings(self, harm: Harm, *, by_map: bool) -> list[str]:
        """What the audit of a harmed mirror says, a line each."""
        report = self.audit(self.mirrored(harm, by_map=by_map), by_map=by_map)
        return [str(finding) for _, finding in report.findings]


@pytest.fixture(scope="module")
def original() -> Original:
    broker = ArchiveBroker(recorded)
    return Original(broker, make_offset_map(broker, broker.topics))


def records(broker: Broker, topic: str) -> list[Record]:
    with broker.consumer(client_id="reader") as consumer:
        return list(read_to_end(consumer, topic, 0))


@pytest.mark.parametrize("by_map", [True, False], ids=["map", "ledger"])
def test_a_faithful_mirror_is_audited_as_the_original_is(original: Original, by_map: bool) -> None:
    mirror = original.mirrored(by_map=by_map)
    report = original.audit(mirror, by_map=by_map)
    assert report.is_clean, "\n".join(report.lines())
    there = {entry.offset: entry.digest for entry in read_ledger(original.broker, original.topics)}
    here = {entry.offset: entry.digest for entry in read_ledger(mirror, original.topics)}
    assert here == there
    assert list(there) != list(range(len(there))), "the original has gaps, or nothing is shown"
    assert any("read from a mirror" in note for note in report.notes)


@pytest.mark.parametrize("topic", ["steps", "samples", "tasks", "weights", "control"])
@pytest.mark.parametrize(
    ("copies", "word"),
    [(lost, "lost"), (doubled, "doubled"), (altered, "altered")],
    ids=["lost", "doubled", "altered"],
)
def test_a_map_names_harm_to_any_topic(
    original: Original, topic: str, copies: Callable[[Record], list[Record]], word: str
) -> None:
    name = getattr(original.topics, topic)
    harmed = records(original.broker, name)[1]
    harm = at(TopicPartition(name, 0), harmed.offset, copies)
    found = original.findings(harm, by_map=True)
    where = f"{alias}.{name}" if word == "doubled" else f"{name}, partition 0, offset {harmed.offset}: "
    assert any(line.startswith(where) and f"{word} " in line for line in found), found


@pytest.mark.parametrize("topic", ["steps", "samples"])
@pytest.mark.parametrize("copies", [lost, altered], ids=["lost", "altered"])
def test_without_a_map_harm_to_what_was_trained_from_is_found(
    original: Original, topic: str, copies: Callable[[Record], list[Record]]
) -> None:
    name = getattr(original.topics, topic)
    harmed = records(original.broker, name)[1]
    found = original.findings(at(TopicPartition(name, 0), harmed.offset, copies), by_map=False)
    assert any(line.startswith(f"{name}, partition 0") for line in found), found


def with_aborted_steps(record: Record) -> list[Record]:
    """A task as its dispatcher would have written it, had transactions of the trainer been aborted before version 1.

    A mirror has nothing of these but the positions that tasks name.
    """
    try:
        decoded = decode(record.value or b"")
    except SchemaError:
        return [record]
    if not isinstance(decoded, RolloutTask) or decoded.issued_version < 1:
        return [record]
    later = replace(decoded, ledger_position=decoded.ledger_position + num_aborted)
    return [replace(record, value=encode(later))]


def without_end_of_ledger(topics: RunTopics, version: int) -> Harm:
    """A mirror whose ledger ends before a version."""

    def harm(record: Record) -> list[Record]:
        is_later = record.topic == topics.steps and ledger_entry(record).record.version >= version
        return [] if is_later else with_aborted_steps(record)

    return harm


def test_without_a_map_a_faithful_mirror_is_clean_though_transactions_of_the_trainer_were_aborted(
    original: Original,
) -> None:
    mirror = original.mirrored(with_aborted_steps, by_map=False)
    report = original.audit(mirror, by_map=False)
    assert report.is_clean, "\n".join(report.lines())
    ends = (broker_end(original.broker, original.topics), broker_end(mirror, original.topics))
    assert 0 < ends[1] - ends[0] <= num_aborted


def test_without_a_map_an_end_that_the_ledger_lost_is_found_though_transactions_were_aborted(
    original: Original,
) -> None:
    found = original.findings(without_end_of_ledger(original.topics, 2), by_map=False)
    assert any("issued when more of the ledger had been read" in line for line in found), found


def broker_end(broker: Broker, topics: RunTopics) -> int:
    place = TopicPartition(topics.steps, 0)
    with broker.consumer(client_id="reader") as consumer:
        return consumer.end_offsets([place])[place]


@pytest.mark.parametrize("topic", ["steps", "samples"])
def test_without_a_map_doubled_records_are_named_and_read_once(original: Original, topic: str) -> None:
    name = getattr(original.topics, topic)
    harmed = records(original.broker, name)[1]
    harm = at(TopicPartition(name, 0), harmed.offset, doubled)
    (line,) = original.findings(harm, by_map=False)
    assert "doubled in the mirror" in line
    mirror = original.mirrored(harm, by_map=False)
    assert [record.offset for record in records(mirror, name)] == [
        record.offset for record in records(original.broker, name)
    ]


@pytest.mark.parametrize("by_map", [True, False], ids=["map", "ledger"])
def test_lineage_and_an_archive_of_a_mirror_are_those_of_the_original(
    original: Original, by_map: bool, tmp_path: Path
) -> None:
    mirror = original.mirrored(by_map=by_map)
    here, there = Lineage(mirror, original.topics), Lineage(original.broker, original.topics)
    assert here.step(2) == there.step(2)
    assert here.version(2) == there.version(2)
    path = tmp_path / "mirror.zip"
    store = archived_weights(original.broker.file)
    export_archive(mirror, original.topics, store, path, weights=WeightsChoice.FIRST)
    archive = ArchiveBroker(path)
    report = audit_run(
        archive,
        original.topics,
        archived_weights(archive.file),
        ends_with=archive.manifest.ledger_head,
        has_all_files=False,
        settles_within_seconds=0.0,
    )
    assert report.is_clean, "\n".join(report.lines())
    assert archive.manifest.ledger_head == original.broker.manifest.ledger_head


def test_a_mirror_that_is_taken_for_the_original_is_named(original: Original) -> None:
    taken = original.taken_for_it()
    report = with_hint(original.audit(taken, by_map=False), taken, original.topics)
    assert not report.is_clean
    assert any("--mirror same-names" in note for note in report.notes), report.notes
    clean = original.audit(original.mirrored(by_map=True), by_map=True)
    assert with_hint(clean, taken, original.topics) is clean


def test_a_damaged_run_that_is_no_mirror_is_not_called_one(original: Original) -> None:
    found = original.audit(original.taken_for_it(), by_map=False)
    assert with_hint(found, original.broker, original.topics) is found


def test_a_mirror_is_only_read(original: Original) -> None:
    mirror = original.mirrored(by_map=True)
    with pytest.raises(BrokerError, match="--mirror"):
        mirror.producer(client_id="writer")
    with pytest.raises(BrokerError, match="--mirror"):
        mirror.transactional_producer("id")
    with mirror.admin() as admin:
        assert set(admin.list_topics()) == set(original.broker.manifest.topics)
        for change in (admin.create_topics, admin.delete_topics):
            with pytest.raises(BrokerError, match="--mirror"):
                change([])
        with pytest.raises(BrokerError, match="--mirror"):
            admin.delete_records({})


def test_a_map_is_written_and_read_back(original: Original, tmp_path: Path) -> None:
    path = tmp_path / "offsets.gz"
    write_offset_map(original.offset_map, path)
    assert read_offset_map(path) == OffsetMap.model_validate_json(original.offset_map.model_dump_json())
    known = known_from_map(path, original.topics)(TopicPartition(original.topics.steps, 0))
    assert known is not None
    assert list(known.offsets) == [
        record.offset for record in records(original.broker, original.topics.steps)
    ]


def test_a_map_of_another_run_or_a_damaged_one_is_refused(original: Original, tmp_path: Path) -> None:
    path = tmp_path / "offsets.gz"
    write_offset_map(original.offset_map, path)
    with pytest.raises(ConfigError, match=r"not of rollog\.other"):
        known_from_map(path, RunTopics("rollog", "other"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="damaged"):
        read_offset_map(path)
    path.write_bytes(b"no map")
    with pytest.raises(ConfigError, match="no"):
        read_offset_map(path)
    with pytest.raises(ConfigError, match="export --offsets"):
        read_offset_map(tmp_path / "missing")
