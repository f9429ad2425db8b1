"""A byte altered in Kafka's own log file, with the batch's checksum made right again: the audit names the record."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka.record.util import calc_crc32c

from consumers.audit.auditor import audit_run
from consumers.audit.findings import Place
from rollog.kernel.archived_weights import archived_weights
from rollog.kernel.broker.archive import ArchiveBroker
from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.broker.topics import run_topic_names, topic_specs
from rollog.kernel.runs import find_run
from rollog.settings.settings import Settings
from schemas import Sample, Status
from schemas.codec import decode_as

if TYPE_CHECKING:
    from consumers.audit.report import AuditReport
    from rollog.kernel.broker.ports import Broker

pytestmark = [pytest.mark.broker]

recorded = ArchiveBroker(Path(__file__).parents[1] / "data" / "recorded" / "run.zip")
num_partitions = 2

_length_at, _checksum_at, _checked_from = 8, 17, 21
"""In a record batch of format 2: its length without the first 12 bytes, its crc32c, and what that is of."""


def copy_to(broker: Broker) -> None:
    """The recorded run on another broker, its samples at the same offsets."""
    manifest = find_run(recorded, recorded.topics.prefix, recorded.topics.run)
    specs = topic_specs(recorded.topics, Settings.from_manifest(manifest.config_json).broker)
    with (
        broker.admin() as admin,
        recorded.consumer(client_id="copy") as consumer,
        broker.producer(client_id="copy") as producer,
    ):
        admin.create_topics(specs)
        for spec in specs:
            if spec.name not in run_topic_names(recorded.topics):
                continue
            for partition in range(spec.num_partitions):
                for record in read_to_end(consumer, spec.name, partition):
                    producer.send(
                        spec.name, partition, record.value, key=record.key, headers=list(record.headers)
                    )
        producer.flush(30.0)


def audit(broker: Broker) -> AuditReport:
    return audit_run(broker, recorded.topics, archived_weights(recorded.file))


def a_trained_sample() -> tuple[int, int, Sample]:
    """Partition, offset and payload of a finished sample."""
    with recorded.consumer(client_id="samples") as consumer:
        for partition in range(num_partitions):
            for record in read_to_end(consumer, recorded.topics.samples, partition):
                sample = decode_as(Sample, record.value or b"")
                if sample.status is Status.FINISHED:
                    return partition, record.offset, sample
    raise AssertionError("nothing was finished")


def alter(segment: Path, wanted: bytes) -> None:
    """Flip a bit of the first of these bytes, and make the checksum of its batch right."""
    data = bytearray(segment.read_bytes())
    place = data.index(wanted)
    data[place] ^= 1
    begin = 0
    while True:
        (length,) = struct.unpack_from(">i", data, begin + _length_at)
        end = begin + 12 + length
        if place < end:
            break
        begin = end
    checksum = calc_crc32c(memoryview(data)[begin + _checked_from : end])
    struct.pack_into(">I", data, begin + _checksum_at, checksum)
    segment.write_bytes(data)


@pytest.mark.usefixtures("embedded_kafka")  # whose start has fetched the jars
def test_an_altered_byte_in_a_log_segment_is_named(tmp_path: Path, cache_directory: Path) -> None:
    partition, offset, sample = a_trained_sample()
    with EmbeddedKafka(tmp_path / "kafka", cache_directory) as kafka:
        copy_to(KafkaBroker(kafka.address))
        report = audit(KafkaBroker(kafka.address))
        assert report.is_clean, "\n".join(report.lines())
    (segment,) = (tmp_path / "kafka").rglob(f"{recorded.topics.samples}-{partition}/*.log")
    alter(segment, sample.token_ids.tobytes())
    with EmbeddedKafka(tmp_path / "kafka", cache_directory) as kafka:
        report = audit(KafkaBroker(kafka.address))
    named = {(check.name, found.place) for check, found in report.findings}
    assert ("digests", Place(recorded.topics.samples, partition, offset)) in named, "\n".join(report.lines())
