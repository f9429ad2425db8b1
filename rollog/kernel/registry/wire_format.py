"""Confluent's wire format, and how it is turned into single-object encoding and back.

    on the log    00 | schema id, 4 bytes, big-endian         | body     header `rollog-schema`: the fingerprint
    in rollog     C3 01 | CRC-64-AVRO fingerprint, 8 bytes    | body

The body is the same in both. Everything that judges, digests or keeps a record sees the second form, so that a run
says the same whichever stands on its topics. The header lets a record be read when no registry is there any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import Record
from schemas.frames import SingleObjectFrame

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Headers

schema_header = "rollog-schema"
"""Kafka header of a record that rollog wrote: the fingerprint of its schema, 8 bytes."""

magic = b"\x00"
_marker = SingleObjectFrame.marker
_start_of_body = 5
_num_fingerprint_bytes = SingleObjectFrame.size - len(_marker)


def fingerprint_of(value: bytes | None) -> bytes | None:
    """The fingerprint that a value in single-object encoding names; None for any other value."""
    if value is None or len(value) < SingleObjectFrame.size or not value.startswith(_marker):
        return None
    return value[len(_marker) : SingleObjectFrame.size]


def schema_id_of(value: bytes | None) -> int | None:
    """The schema id that a value in the wire format names; None for any other value."""
    if value is None or len(value) < _start_of_body or not value.startswith(magic):
        return None
    return int.from_bytes(value[1:_start_of_body], "big")


def named_fingerprint(headers: Headers) -> bytes | None:
    """The fingerprint in the header of a record; None where it has none, or none of 8 bytes."""
    for name, content in headers:
        if name == schema_header and len(content) == _num_fingerprint_bytes:
            return content
    return None


def with_schema_id(value: bytes, schema_id: int) -> bytes:
    """A value in single-object encoding in the wire format."""
    return magic + schema_id.to_bytes(4, "big") + value[SingleObjectFrame.size :]


def with_fingerprint(record: Record, fingerprint: bytes) -> Record:
    """A record read in the wire format, in single-object encoding and without the header that rollog adds."""
    assert record.value is not None
    return Record(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        value=_marker + fingerprint + record.value[_start_of_body:],
        key=record.key,
        headers=[(name, content) for name, content in record.headers if name != schema_header],
        timestamp_ms=record.timestamp_ms,
    )
