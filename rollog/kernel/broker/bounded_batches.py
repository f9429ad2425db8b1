"""Record batches as they come from Kafka, read with a bound: what cannot be read comes out as one record that says so.

A batch is compressed as a whole, and the broker's limit holds for its compressed size: 50 kB of zstd can hold 600 MB.
kafka-python inflates all of it, and what it cannot read (bytes that are no zstd, a header name that is no UTF-8) ends
its consumer, again and again at the same offset. Here such a batch becomes a single record at the batch's last offset,
without value, with its size, digest and the reason, and reading goes on behind it.
"""

from __future__ import annotations

import gzip
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any

from kafka import codec
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch

from rollog.kernel.broker.limits import most_inflated_bytes
from rollog.kernel.broker.plain_records import plain_records
from rollog.kernel.broker.ports import Unread

if TYPE_CHECKING:
    from collections.abc import Iterator


class UnreadMark(str):
    """In the place of a header's name: that a record stands for a batch that was not read. Nobody can write one."""

    __slots__ = ("unread",)

    unread: Unread


class BatchNotRead(Exception):
    """Why a batch is not read."""


class BoundedRecordBatch(DefaultRecordBatch):  # type: ignore[misc]  # the library is untyped
    """A batch that inflates to `most_inflated_bytes` at most, and whose records are read all or not at all."""

    if TYPE_CHECKING:  # the library's own slots
        _buffer: bytearray
        _pos: int
        _decompressed: bool

    def __iter__(self) -> Iterator[Any]:
        """Its records, or one that says why there are none."""
        stored = bytes(self._buffer)
        try:
            self._inflate()
            return iter(self._plainly(stored) or list(self._each()))
        except Exception as error:  # noqa: BLE001 - whatever the library raises on foreign bytes
            return iter([self._unread(stored, error)])

    def _plainly(self, stored: bytes) -> list[Any] | None:
        """Its records where it is an ordinary batch, else None: the library says what it is then."""
        if self.is_control_batch:
            return None
        data = stored if self.compression_type == self.CODEC_NONE else bytes(self._buffer)
        newest, first = self.max_timestamp, self.first_timestamp
        is_append_time = self.timestamp_type == self.LOG_APPEND_TIME
        try:
            return plain_records(
                data,
                self._pos,
                self.records_count,
                base_offset=self.base_offset,
                timestamp=(lambda _: newest) if is_append_time else (lambda difference: first + difference),
                kind=self.timestamp_type,
            )
        except (ValueError, IndexError, TypeError):
            return None

    def _each(self) -> Iterator[Any]:
        while True:
            try:
                yield super().__next__()
            except StopIteration:
                return

    def _inflate(self) -> None:
        if self._decompressed:
            return
        if self.compression_type != self.CODEC_NONE:
            self._assert_has_codec(self.compression_type)
            self._buffer = bytearray(inflated(self.compression_type, bytes(self._buffer[self._pos :])))
            self._pos = 0
        self._decompressed = True

    def _unread(self, stored: bytes, error: Exception) -> DefaultRecord:
        digest = sha256(stored)
        mark = UnreadMark()
        mark.unread = Unread(
            num_bytes=len(stored),
            reason=(
                f"a batch of {self.records_count} records, {len(stored)} bytes, sha256 {digest.hexdigest()}, "
                f"is not read: {error if isinstance(error, BatchNotRead) else repr(error)}"
            ),
        )
        return DefaultRecord(
            len(stored), self.last_offset, self.max_timestamp, self.timestamp_type, None, None, [(mark, None)]
        )


def inflated(compression_type: int, data: bytes) -> bytes:
    """The bytes that a batch holds. Raises BatchNotRead beyond `most_inflated_bytes`."""
    most = most_inflated_bytes + 1
    match compression_type:
        case DefaultRecordBatch.CODEC_GZIP:
            with gzip.GzipFile(fileobj=BytesIO(data)) as file:
                found = file.read(most)
        case DefaultRecordBatch.CODEC_ZSTD:
            with codec.zstd.ZstdDecompressor().stream_reader(BytesIO(data), read_across_frames=True) as file:
                found = file.read(most)
        case DefaultRecordBatch.CODEC_LZ4:
            found = codec.lz4.LZ4FrameDecompressor().decompress(data, max_length=most)
        case _:
            found = codec.snappy_decode(data)  # its format inflates to 21 times its bytes at most
    if len(found) > most_inflated_bytes:
        raise BatchNotRead(f"inflated it has more than {most_inflated_bytes} bytes")
    return bytes(found)


def read_batches_bounded() -> None:
    """Have every consumer of this process read batches so. Idempotent."""
    memory_records.DefaultRecordBatch = BoundedRecordBatch
