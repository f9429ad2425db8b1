"""Records of a topic as the broker gives them, and their Avro bodies, read without any code of rollog.

kafka-python asks the broker, fastavro reads the bodies by the `.avsc` files, and nothing else takes part: what the
product believes of its own log cannot make this reader believe it too.
"""

from __future__ import annotations

import io
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form
from kafka import KafkaConsumer, TopicPartition

_schemas = Path(__file__).resolve().parents[2] / "schemas"
_marker = b"\xc3\x01"
_prefix_bytes = 10
_poll_ms = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """One record: its place, when the broker appended it (seconds since 1970), and its bytes."""

    partition: int
    offset: int
    appended: float
    value: bytes


def read_topic(address: str, topic: str, *, max_seconds: float = 120.0) -> list[Raw]:
    """All committed records of a topic, by partition and offset. Raises TimeoutError when the end is not reached."""
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_partition_fetch_bytes=16 << 20,
    )
    try:
        return _read(consumer, topic, max_seconds)
    finally:
        consumer.close()


def _read(consumer: Any, topic: str, max_seconds: float) -> list[Raw]:
    partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    ends = consumer.end_offsets(partitions)
    found: list[Raw] = []
    deadline = time.monotonic() + max_seconds
    while any(consumer.position(place) < ends[place] for place in partitions):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the end of {topic} was not reached within {max_seconds:g} s")
        for place, records in consumer.poll(timeout_ms=_poll_ms).items():
            found += [
                Raw(
                    partition=place.partition,
                    offset=record.offset,
                    appended=record.timestamp / 1000,
                    value=record.value or b"",
                )
                for record in records
                if record.offset < ends[place]
            ]
    return sorted(found, key=lambda record: (record.partition, record.offset))


class Decoder:
    """Reads Avro single-object encoding by every schema file that is beside the product, the released ones too."""

    def __init__(self, folder: Path = _schemas) -> None:
        self._schemas: dict[bytes, Any] = {}
        # Those in force come last: they win where a release is the same.
        for path in [*sorted(folder.glob("released/*/*.avsc")), *sorted(folder.glob("avsc/*.avsc"))]:
            definition = json.loads(path.read_text(encoding="utf-8"))
            digits = fingerprint(to_parsing_canonical_form(definition), "CRC-64-AVRO")
            self._schemas[_marker + bytes.fromhex(digits)] = (
                definition["name"],
                parse_schema(definition, _write_hint=False),
            )

    def decode(self, value: bytes) -> tuple[str, dict[str, Any]]:
        """The record's name and fields. Raises ValueError for bytes that are not of any schema."""
        known = self._schemas.get(value[:_prefix_bytes])
        if known is None:
            raise ValueError(
                f"{len(value)} bytes beginning with {value[:_prefix_bytes].hex()} are of no schema"
            )
        name, schema = known
        try:
            fields: Any = fastavro.schemaless_reader(io.BytesIO(value[_prefix_bytes:]), schema, None)
        except (EOFError, LookupError, TypeError, ArithmeticError, MemoryError) as error:
            raise ValueError(f"a {name} cannot be read: {error}") from error
        return name, fields
