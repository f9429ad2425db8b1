"""Writing the archive of a run, finished or not; `rollog.kernel.broker.archive_format` says what is in it.

Consumes every topic of the run, its manifest, its weights files and the objects of large samples; produces one file,
under its final name only when it is whole. Every ledger record's samples, dead letters and weights are in the archive,
too: the ledger is read first. Holds one block of records, or one object, at a time.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from dataclasses import dataclass
from enum import StrEnum
from io import RawIOBase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fastavro import writer as write_container

from consumers.named_payloads import named_payload
from consumers.named_weights import pruned_in
from rollog import __version__
from rollog.kernel.atomic_write import atomic_write
from rollog.kernel.broker.archive_format import (
    ArchivedPartition,
    ArchivedTopic,
    ArchivedWeights,
    ArchiveManifest,
    block_bytes,
    manifest_member,
    parsed_record_schema,
    payload_member,
    topic_member,
    weights_member,
)
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_to_end, read_topic
from rollog.kernel.broker.topics import runs_topic
from rollog.kernel.errors import PayloadAltered, PayloadMissing, TopicMismatch, WeightsError
from rollog.kernel.logs import get_logger
from rollog.kernel.payloads import PayloadStore
from rollog.rules.ledger_state import record_hash
from schemas import SchemaError, WeightsPruned, WeightVersion
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from rollog.kernel.broker.ports import Broker, Consumer, Record, TopicSpec
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.weights import WeightsStore
    from schemas import Payload

log = get_logger("archive")

_chunk_bytes = 4 << 20


class WeightsChoice(StrEnum):
    """Which weights files an archive holds. Audit looks at all of them, replay needs version 0."""

    ALL = "all"
    FIRST = "first"
    NONE = "none"


def export_archive(
    broker: Broker, topics: RunTopics, store: WeightsStore, path: Path, *, weights: WeightsChoice
) -> ArchiveManifest:
    """Write the archive of a run to `path`; returns what is in it.

    Raises:
        ConfigError: there is a file of that name, or it cannot be written.
        TopicMismatch: the run has no topics.
        WeightsError: a weights file that was asked for is gone or damaged.
        PayloadStoreSilent: the store does not answer. An object that is gone or altered is left out, with a warning.
    """
    names = _topics_in_order(topics)
    with broker.admin() as admin:
        if not admin.describe_topics([topics.rewards]):
            names.remove(topics.rewards)
    return write_archive(broker, topics, names, store, path, weights=weights)


def write_archive(
    broker: Broker,
    topics: RunTopics,
    names: Sequence[str],
    store: WeightsStore,
    path: Path,
    *,
    weights: WeightsChoice,
) -> ArchiveManifest:
    """As `export_archive`, of the topics that are named, in that order."""
    with broker.admin() as admin:
        specs = admin.describe_topics(names)
    missing = [name for name in names if name not in specs]
    if missing:
        raise TopicMismatch(f"topic {missing[0]} does not exist at {broker.address}: check the run's name")
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        with broker.consumer(client_id="export") as consumer:
            written = _ArchiveWriter(archive, consumer, topics)
            archived = {name: written.topic(specs[name]) for name in names}
        manifest = ArchiveManifest(
            rollog_version=__version__,
            prefix=topics.prefix,
            run=topics.run,
            ledger_head=written.ledger_head,
            weights_chosen=weights.value,
            topics=archived,
            weights=_write_weights(
                archive,
                store,
                _chosen(written.notices, weights),
                lambda: pruned_in(read_topic(broker, topics.weights, client_id="export-pruned")),
            ),
            payloads=_write_payloads(archive, PayloadStore(store, topics), written.payloads),
        )
        unneeded = None if manifest.payloads else {"payloads"}
        archive.writestr(manifest_member, manifest.model_dump_json(indent=1, exclude=unneeded))
    return manifest


def _topics_in_order(topics: RunTopics) -> list[str]:
    """The ledger first and tasks after samples, so that whatever a record names is read after it."""
    return [
        topics.steps,
        topics.weights,
        topics.dead_letters,
        topics.samples,
        topics.rewards,
        topics.evaluations,
        topics.tasks,
        topics.workers,
        topics.control,
        runs_topic(topics.prefix),
    ]


class _ArchiveWriter:
    """Writes topics, and takes note of the ledger's head, of the notices of weights and of objects that are named."""

    def __init__(self, archive: zipfile.ZipFile, consumer: Consumer, topics: RunTopics) -> None:
        self._archive = archive
        self._consumer = consumer
        self._topics = topics
        self.ledger_head: str | None = None
        self.notices: dict[tuple[int, str], WeightVersion] = {}
        """Of versions that were not pruned."""
        self.payloads: dict[str, Payload] = {}

    def topic(self, spec: TopicSpec) -> ArchivedTopic:
        """Write all partitions of one topic."""
        return ArchivedTopic(
            replication_factor=spec.replication_factor,
            config=dict(spec.config),
            partitions=tuple(
                self._partition(TopicPartition(spec.name, index)) for index in range(spec.num_partitions)
            ),
        )

    def _partition(self, partition: TopicPartition) -> ArchivedPartition:
        beginning = self._consumer.beginning_offsets([partition])[partition]
        end = self._consumer.end_offsets([partition])[partition]
        counter = _Counter()
        name = topic_member(partition.topic, partition.partition)
        with self._archive.open(name, "w", force_zip64=True) as member:
            sink = _Measuring(member)
            records = counter.count(self._records(partition, end))
            write_container(sink, parsed_record_schema, records, codec="deflate", sync_interval=block_bytes)
        return ArchivedPartition(
            beginning_offset=beginning,
            end_offset=end,
            num_records=counter.num_records,
            num_bytes=sink.num_bytes,
            sha256=sink.sha256,
        )

    def _records(self, partition: TopicPartition, end: int) -> Iterator[dict[str, Any]]:
        for record in read_to_end(self._consumer, partition.topic, partition.partition):
            if record.offset < end and self._is_of_this_run(record):
                self._take_note(record)
                yield {
                    "offset": record.offset,
                    "timestamp_ms": record.timestamp_ms,
                    "key": record.key,
                    "headers": [{"name": name, "value": value} for name, value in record.headers],
                    "value": record.value,
                }

    def _is_of_this_run(self, record: Record) -> bool:
        shared = runs_topic(self._topics.prefix)
        return record.topic != shared or record.key == self._topics.run.encode()

    def _take_note(self, record: Record) -> None:
        if record.topic == self._topics.steps:
            self.ledger_head = record_hash(record.value or b"").hex()
        elif record.topic == self._topics.weights:
            try:
                self._take_note_of_weights(decode(record.value or b""))
            except SchemaError as error:
                log.warning("weights notice unreadable", offset=record.offset, error=str(error))
        elif record.topic in (self._topics.samples, self._topics.evaluations):
            payload = named_payload(record.value)
            if payload is not None:
                self.payloads[payload.sha256] = payload

    def _take_note_of_weights(self, record: object) -> None:
        if isinstance(record, WeightVersion):
            # Of the same weights the last notice: a store may have lost what earlier ones name.
            self.notices[record.version, record.sha256] = record
        elif isinstance(record, WeightsPruned):
            newest = max((version for version, _ in self.notices), default=0)
            gone = {version for version in record.versions if version < newest}
            self.notices = {key: notice for key, notice in self.notices.items() if key[0] not in gone}


@dataclass(slots=True)
class _Counter:
    num_records: int = 0

    def count(self, records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for record in records:
            self.num_records += 1
            yield record


class _Measuring(RawIOBase):
    """Writes on, and knows size and sha256 of what was written."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._digest = hashlib.sha256()
        self.num_bytes = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Write all of it."""
        self._digest.update(data)
        self.num_bytes += len(data)
        return self._target.write(data)

    @property
    def sha256(self) -> str:
        """Of everything so far."""
        return self._digest.hexdigest()


def _chosen(notices: dict[tuple[int, str], WeightVersion], weights: WeightsChoice) -> list[WeightVersion]:
    match weights:
        case WeightsChoice.ALL:
            return list(notices.values())
        case WeightsChoice.FIRST:
            return [notice for notice in notices.values() if notice.version == 0]
        case WeightsChoice.NONE:
            return []


def _write_weights(
    archive: zipfile.ZipFile,
    store: WeightsStore,
    notices: Sequence[WeightVersion],
    pruned: Callable[[], Collection[int]],
) -> dict[str, ArchivedWeights]:
    """Store the files of the versions that `notices` name as they are, all checked, one version at a time.

    A patch is archived as a patch: what it is based on has a notice, too. A version that the run has let go since its
    notices were read (`pruned`) is left out.
    """
    written: dict[str, ArchivedWeights] = {}
    for notice in notices:
        with tempfile.TemporaryDirectory(prefix="rollog-export-") as downloads:
            try:
                files = store.stored_files(notice, Path(downloads))
            except WeightsError as error:
                if notice.version not in pruned():
                    raise
                log.warning("weights left out, pruned meanwhile", version=notice.version, error=str(error))
                continue
            for file in files:
                sink = _write_file(archive, file)
                written[file.name] = ArchivedWeights(
                    version=notice.version, num_bytes=sink.num_bytes, sha256=sink.sha256
                )
    return written


def _write_file(archive: zipfile.ZipFile, path: Path) -> _Measuring:
    with (
        path.open("rb") as stored,
        archive.open(weights_member(path.name), "w", force_zip64=True) as member,
    ):
        sink = _Measuring(member)
        while chunk := stored.read(_chunk_bytes):
            sink.write(chunk)
    return sink


def _write_payloads(
    archive: zipfile.ZipFile, store: PayloadStore, payloads: dict[str, Payload]
) -> dict[str, int]:
    """Store the objects that records name, one at a time; bytes of each by its name."""
    written = {}
    for name, payload in sorted(payloads.items()):
        try:
            data = store.fetch(payload)
        except (PayloadMissing, PayloadAltered) as error:
            # Its sample may well have been judged dead for that; audit and replay say what it means.
            log.warning("object left out", error=str(error))
            continue
        archive.writestr(payload_member(name), data)
        written[name] = len(data)
    return written
