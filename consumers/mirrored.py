"""What is known of a run's original offsets when only a mirror of it is left: from a map, or from its own ledger.

A map is made while the original is there (`rollog export --offsets`) and knows every record of every topic that is not
compacted. Without one the ledger tells: it names each judged sample, and each late reward that counted, by offset and
digest; and one transaction holds one ledger record, so that offsets of `steps` can be counted (`counted_steps`). Of the
other topics the mirror's own offsets stand; nothing in the log names the original ones.

    map      every record: lost, doubled, altered, added ones are named
    ledger   samples and rewards the same, as far as they were judged; of steps the chain shows what is lost or altered

Consumes steps and tasks; for a map every topic of the run. Produces nothing on the log.
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING

from pydantic import Base64Bytes, BaseModel, ConfigDict, ValidationError

from consumers.audit.config import config_of
from consumers.audit.issues import has_seed_of_run
from consumers.counted_steps import CountedSteps
from rollog import __version__
from rollog.kernel.atomic_write import atomic_write
from rollog.kernel.broker.offset_map import Originals, num_digest_bytes, whole_digest
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.broker.topics import OptionalTopic, run_topic_names
from rollog.kernel.errors import ConfigError
from rollog.rules.headers import record_digest
from schemas import Close, Genesis, Kind, LedgerRecord, RolloutTask, TaskBatch
from schemas.codec import SchemaError, decode, decode_as

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rollog.kernel.broker.mirror import MirroredBroker
    from rollog.kernel.broker.ports import Broker, Consumer, Record
    from rollog.kernel.broker.topics import RunTopics

    KnownOriginals = Callable[[TopicPartition], Originals | None]
    """What is known of a partition of the original; None where its mirror's own offsets stand."""

_format = 1


class _MappedPartition(BaseModel):
    """`runs` are stretches of offsets without a gap, as first offset and length; digests of all records in a row."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: str
    partition: int
    begin: int
    end: int
    runs: tuple[tuple[int, int], ...]
    digests: Base64Bytes

    def originals(self) -> Originals:
        """In the form in which a mirror is laid beside it. Raises ValueError where the numbers do not fit."""
        offsets = [first + index for first, length in self.runs for index in range(length)]
        if len(self.digests) != len(offsets) * num_digest_bytes or offsets != sorted(set(offsets)):
            raise ValueError(f"{self.topic}, partition {self.partition}: offsets and digests do not fit")
        digests = [
            self.digests[at : at + num_digest_bytes] for at in range(0, len(self.digests), num_digest_bytes)
        ]
        return Originals(
            offsets=offsets, digests=digests, digest=whole_digest, begin=self.begin, end=self.end
        )


class OffsetMap(BaseModel):
    """Every record of a run, by original offset and digest, without the records."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = _format
    rollog_version: str = __version__
    prefix: str
    run: str
    partitions: tuple[_MappedPartition, ...]

    @property
    def num_records(self) -> int:
        """Of all partitions."""
        return sum(length for partition in self.partitions for _, length in partition.runs)

    def known(self) -> KnownOriginals:
        """What it says of each partition. Raises ConfigError where it cannot be right."""
        try:
            found = {TopicPartition(each.topic, each.partition): each.originals() for each in self.partitions}
        except ValueError as error:
            raise ConfigError(f"the offset map of run {self.run} is damaged: {error}") from error
        return found.get


def make_offset_map(broker: Broker, topics: RunTopics) -> OffsetMap:
    """Read a run where its original is. Raises BrokerTimeout, TopicMismatch."""
    with broker.admin() as admin:
        specs = admin.describe_topics(run_topic_names(topics, list(OptionalTopic)))
    with broker.consumer(client_id="offset-map") as consumer:
        partitions = tuple(
            _mapped(consumer, TopicPartition(spec.name, index))
            for spec in specs.values()
            if spec.name != topics.workers
            for index in range(spec.num_partitions)
        )
    return OffsetMap(prefix=topics.prefix, run=topics.run, partitions=partitions)


def _mapped(consumer: Consumer, place: TopicPartition) -> _MappedPartition:
    begin, end = consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
    runs: list[tuple[int, int]] = []
    digests = bytearray()
    for record in read_to_end(consumer, place.topic, place.partition):
        if record.offset >= end:
            break
        if runs and runs[-1][0] + runs[-1][1] == record.offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((record.offset, 1))
        digests += whole_digest(record)
    return _MappedPartition.model_construct(
        topic=place.topic,
        partition=place.partition,
        begin=begin,
        end=end,
        runs=tuple(runs),
        digests=bytes(digests),
    )


def write_offset_map(found: OffsetMap, path: Path) -> None:
    """Write it as compressed JSON. Raises ConfigError where there is a file of that name."""
    with atomic_write(path) as file, gzip.open(file, "wb") as packed:
        packed.write(found.model_dump_json().encode())


def read_offset_map(path: Path) -> OffsetMap:
    """Raises ConfigError for a file that is not there or is none."""
    try:
        found = OffsetMap.model_validate(json.loads(gzip.decompress(path.read_bytes())))
    except OSError as error:
        raise ConfigError(
            f"the offset map {path} cannot be read: {error}; make one with `rollog export --offsets`"
        ) from error
    except (EOFError, zlib.error, json.JSONDecodeError, UnicodeDecodeError, ValidationError) as error:
        raise ConfigError(f"{path} is no offset map, or it is damaged: {error}") from error
    if found.format != _format:
        raise ConfigError(
            f"{path} has format {found.format}, of another version of rollog ({found.rollog_version})"
        )
    return found


def known_from_map(path: Path, topics: RunTopics) -> KnownOriginals:
    """What a map says of the original. Raises ConfigError where it is damaged or of another run."""
    found = read_offset_map(path)
    if (found.prefix, found.run) != (topics.prefix, topics.run):
        raise ConfigError(
            f"the offset map {path} is of run {found.prefix}.{found.run}, not of {topics.prefix}.{topics.run}"
        )
    return found.known()


def known_from_ledger(mirror: MirroredBroker, topics: RunTopics) -> KnownOriginals:
    """What the mirrored ledger itself says of the original. A broken chain is left to whoever reads it then."""
    ledger = _LedgerPlaces(topics)
    with mirror.admin() as admin:
        specs = admin.describe_topics([topics.tasks])
    with mirror.consumer(client_id="mirror-ledger") as consumer:
        for record in read_to_end(consumer, topics.steps, 0):
            ledger.add(record)
        for spec in specs.values():
            for record in read_to_end(consumer, spec.name, *range(spec.num_partitions)):
                ledger.add_tasks(record)
    return ledger.known


class _LedgerPlaces:
    """Takes in the mirrored records of `steps` in order, then those of `tasks`; knows which original offsets they name.

    A task counts if its seed follows from that of the run: anybody else's could name any position.
    """

    def __init__(self, topics: RunTopics) -> None:
        self._topics = topics
        self._samples: dict[int, dict[int, bytes]] = {}
        self._rewards: dict[int, bytes] = {}
        self._steps: dict[bytes, None] = {}
        self._counted = CountedSteps()
        self._seed: int | None = None
        self._close: Close | None = None

    def add(self, record: Record) -> None:
        """One record of `steps`; what is no ledger record has one offset, and so has each marker behind a whole one."""
        digest = whole_digest(record)
        if digest in self._steps:
            return  # doubled: no two ledger records are equal, since each names the one before it
        self._steps[digest] = None
        try:
            decoded = decode_as(LedgerRecord, record.value or b"")
        except SchemaError:
            self._counted.add(None, ends_transaction=False)
            return
        self._counted.add(decoded.version, ends_transaction=decoded.part == decoded.num_parts - 1)
        for verdict in decoded.verdicts:
            self._samples.setdefault(verdict.partition, {}).setdefault(verdict.offset, verdict.digest)
            if verdict.late_reward is not None:
                self._rewards.setdefault(verdict.late_reward.offset, verdict.late_reward.digest)
        if isinstance(decoded.body, Genesis):
            self._seed = config_of(decoded.body.manifest_json).seed
        if isinstance(decoded.body, Close):
            self._close = decoded.body

    def add_tasks(self, record: Record) -> None:
        """One record of `tasks`: how far its dispatcher had read `steps`."""
        try:
            decoded = decode(record.value or b"")
        except SchemaError:
            return
        tasks = decoded.tasks if isinstance(decoded, TaskBatch) else [decoded]
        for task in tasks:
            if not isinstance(task, RolloutTask) or task.kind is not Kind.TRAINING:
                continue
            if has_seed_of_run(task, self._seed):
                self._counted.read_at(task.issued_version, task.ledger_position)

    def known(self, place: TopicPartition) -> Originals | None:
        """As far as the ledger tells."""
        topics = self._topics
        if place == TopicPartition(topics.steps, 0):
            return Originals(
                offsets=self._counted.offsets,
                digests=list(self._steps),
                digest=whole_digest,
                end=self._counted.end,
            )
        if place.topic == topics.samples:
            return _named(self._samples.get(place.partition, {}), self._end_of_samples(place.partition))
        if place == TopicPartition(topics.rewards, 0) and self._rewards:
            return _named(self._rewards, None)
        return None

    def _end_of_samples(self, partition: int) -> int | None:
        ends = () if self._close is None else self._close.end_offsets
        return ends[partition] if partition < len(ends) else None


def _named(places: dict[int, bytes], end: int | None) -> Originals:
    offsets = sorted(places)
    return Originals(
        offsets=offsets,
        digests=[places[offset] for offset in offsets],
        digest=lambda record: record_digest(record.value),
        end=end,
        is_complete=False,
    )
