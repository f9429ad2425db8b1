"""The records of one archived partition: an Avro object container file, read block by block.

The container is walked here and not by a library, because a library decompresses a block whatever it grows to, and
reads a file only from its beginning. Layout: https://avro.apache.org/docs/1.12.0/specification/#object-container-files
"""

from __future__ import annotations

import json
import struct
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fastavro import schemaless_reader

from rollog.kernel.broker.archive_format import (
    largest_block_bytes,
    parsed_record_schema,
    record_schema,
    topic_member,
)
from rollog.kernel.broker.ports import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.archive_format import ArchivedPartition, ArchiveFile, Member
    from rollog.kernel.broker.ports import TopicPartition
    from rollog.kernel.errors import ArchiveError

_header_schema: dict[str, Any] = {
    "type": "record",
    "name": "Header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
    ],
}
_most_header_bytes = 1 << 16
_most_long_bytes = 10
_peeked_bytes = 1024
"""More than the code tables that may stand before the first bytes of a compressed block."""
_refusals = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    MemoryError,
    struct.error,
    zlib.error,
)
"""Everything fastavro and zlib raise on bytes that do not fit."""


@dataclass(frozen=True, slots=True)
class Block:
    """Where a block's compressed bytes are, how many records they hold, and the offset of the first."""

    position: int
    num_bytes: int
    num_records: int
    first_offset: int


class PartitionBlocks:
    """Finds and decodes the blocks of one partition. Raises ArchiveError, naming the member."""

    def __init__(self, archive: ArchiveFile, place: TopicPartition, partition: ArchivedPartition) -> None:
        self._archive = archive
        self._place = place
        self._partition = partition
        self._name = topic_member(place.topic, place.partition)
        self._index: list[Block] | None = None

    def first_at(self, member: Member, offset: int) -> int:
        """Number of the block in which a reader that stands at `offset` begins."""
        blocks = self.blocks(member)
        return max(0, bisect_right(blocks, offset, key=lambda block: block.first_offset) - 1)

    def blocks(self, member: Member) -> list[Block]:
        """All blocks, in order."""
        if self._index is None:
            try:
                index = list(_walk(member))
            except _refusals as error:
                raise self._damaged(error) from error
            if sum(block.num_records for block in index) != self._partition.num_records:
                raise self._damaged("holds another number of records than the manifest says")
            if any(after.first_offset <= before.first_offset for before, after in pairwise(index)):
                raise self._damaged("holds offsets that do not rise")
            self._index = index
        return self._index

    def records(self, member: Member, block: Block) -> list[Record]:
        """The records of one block."""
        try:
            data = BytesIO(_decompressed(member.read(block.position, block.num_bytes), largest_block_bytes))
            records = [self._record(data) for _ in range(block.num_records)]
            if data.read(1):
                raise self._damaged("has bytes left behind the records of a block")
        except _refusals as error:
            raise self._damaged(error) from error
        if any(after.offset <= before.offset for before, after in pairwise(records)):
            raise self._damaged("holds offsets that do not rise")
        return records

    def _record(self, data: BytesIO) -> Record:
        read: Any = schemaless_reader(data, parsed_record_schema, None)
        if not self._partition.beginning_offset <= read["offset"] < self._partition.end_offset:
            raise self._damaged(f"holds offset {read['offset']}, outside of its partition")
        return Record(
            topic=self._place.topic,
            partition=self._place.partition,
            offset=read["offset"],
            value=read["value"],
            key=read["key"],
            headers=[(header["name"], header["value"]) for header in read["headers"]],
            timestamp_ms=read["timestamp_ms"],
        )

    def _damaged(self, what: BaseException | str) -> ArchiveError:
        text = what if isinstance(what, str) else f"holds records that cannot be read ({what})"
        return self._archive.error(self._name, text)


def _walk(member: Member) -> Iterator[Block]:
    """The blocks of a container. Raises ValueError and its like."""
    position, sync = _read_header(member)
    while position < member.num_bytes:
        head = BytesIO(member.head(position, 2 * _most_long_bytes))
        num_records, num_bytes = _read_long(head), _read_long(head)
        position += head.tell()
        if not 0 < num_records <= largest_block_bytes or not 0 < num_bytes <= largest_block_bytes:
            raise ValueError(f"a block of {num_bytes} bytes with {num_records} records")
        if member.read(position + num_bytes, len(sync)) != sync:
            raise ValueError("a block does not end in the container's marker")
        start = BytesIO(_beginning_of(member.head(position, min(num_bytes, _peeked_bytes))))
        yield Block(position, num_bytes, num_records, _read_long(start))
        position += num_bytes + len(sync)


def _read_header(member: Member) -> tuple[int, bytes]:
    """Where the blocks begin, and what each of them ends in."""
    data = BytesIO(member.head(0, _most_header_bytes))
    header: Any = schemaless_reader(data, _header_schema, None)
    if header["magic"] != b"Obj\x01" or header["meta"].get("avro.codec") != b"deflate":
        raise ValueError("not a container compressed with deflate")
    if json.loads(header["meta"].get("avro.schema", b"null")) != record_schema:
        raise ValueError("another schema than that of archived records")
    return data.tell(), header["sync"]


def _decompressed(data: bytes, most_bytes: int) -> bytes:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    result = stream.decompress(data, most_bytes)
    if not stream.eof:  # what follows the stream does not matter: fastavro leaves bytes of a checksum there
        raise ValueError(f"a block that is damaged, or has more than {most_bytes} bytes")
    return result


def _beginning_of(data: bytes) -> bytes:
    """The first bytes of a block, of which `data` is the beginning."""
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, _most_long_bytes)


def _read_long(data: BytesIO) -> int:
    """One of Avro's variable-length, zigzag-coded integers."""
    value = 0
    for shift in range(0, 7 * _most_long_bytes, 7):
        byte = data.read(1)
        if not byte:
            raise EOFError("the bytes end in the middle of a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:  # noqa: PLR2004 - the highest bit says that another byte follows
            return (value >> 1) ^ -(value & 1)
    raise ValueError("a number of more than 64 bits")
