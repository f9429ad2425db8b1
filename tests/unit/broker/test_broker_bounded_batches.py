"""Batches that inflate beyond all bounds, or are not what they say: one record each, and reading goes on."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords, MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBatch

from rollog.kernel.broker.bounded_batches import UnreadMark, read_batches_bounded
from rollog.kernel.broker.limits import most_inflated_bytes

none, gzip, lz4, zstd = 0, 1, 3, 4
header_bytes = 61


def a_batch(compression: int, *values: bytes, offset: int = 0) -> bytearray:
    builder = MemoryRecordsBuilder(magic=2, compression_type=compression, batch_size=1 << 20, offset=offset)
    for value in values:
        builder.append(timestamp=0, key=b"k", value=value, headers=[("h", b"v")])
    builder.close()
    return bytearray(builder.buffer())


def with_payload(batch: bytearray, compression: int, payload: bytes) -> bytearray:
    """The batch's header before another payload."""
    changed = batch[:header_bytes] + payload
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">h", changed, 21, compression)
    return changed


def zeros(num_bytes: int) -> bytes:
    """So many zeros, compressed."""
    compressor = zstandard.ZstdCompressor().compressobj()
    chunk = bytes(1 << 20)
    return b"".join(compressor.compress(chunk) for _ in range(num_bytes >> 20)) + compressor.flush()


def read(*batches: bytearray) -> list[Any]:
    read_batches_bounded()
    return [record for batch in MemoryRecords(b"".join(batches)) for record in batch]


@pytest.mark.parametrize("compression", [none, gzip, lz4, zstd])
def test_batches_of_every_kind_are_read_as_before(compression: int) -> None:
    records = read(a_batch(compression, b"one" * 100, b"two" * 100, offset=7))
    assert [(record.offset, record.value) for record in records] == [(7, b"one" * 100), (8, b"two" * 100)]
    assert records[0].headers == [("h", b"v")]


def parts(record: Any) -> tuple[Any, ...]:
    return (
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        record.headers,
        record.size_in_bytes,
    )


@pytest.mark.parametrize("compression", [none, zstd])
def test_records_are_those_that_the_library_reads(compression: int) -> None:
    builder = MemoryRecordsBuilder(magic=2, compression_type=compression, batch_size=1 << 20, offset=5)
    odd = [("", b""), ("none", None), ("ä" * 40, bytes(300)), ("type", b"Sample")]
    for number, (key, value) in enumerate([(None, b"x"), (b"k" * 200, None), (b"", bytes(100_000))]):
        builder.append(timestamp=1000 + 7 * number, key=key, value=value, headers=odd[: 4 - number])
    builder.close()
    batch = bytes(builder.buffer())
    by_library = DefaultRecordBatch(bytearray(batch))
    assert [parts(record) for record in read(bytearray(batch))] == [parts(record) for record in by_library]


@given(data=st.data())
def test_altered_batches_are_read_as_the_library_reads_them_or_not_at_all(data: st.DataObject) -> None:
    batch = a_batch(none, b"one" * 30, b"two")
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(header_bytes, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = [parts(record) for record in DefaultRecordBatch(bytearray(batch))]
    except Exception:  # noqa: BLE001 - whatever the library raises on such bytes
        expected = []
    found = read(bytearray(batch))
    if any(isinstance(name, UnreadMark) for record in found for name, _ in record.headers):
        found = []
    assert [parts(record) for record in found] == expected


def test_600_megabytes_in_a_small_batch_are_one_record_without_a_value_and_the_next_batch_is_read() -> None:
    bomb = with_payload(a_batch(none, b"a", b"b", offset=3), zstd, zeros(600 << 20))
    assert len(bomb) < 100_000
    tracemalloc.start()
    unread, good = read(bomb, a_batch(zstd, b"good", offset=5))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * most_inflated_bytes
    assert (unread.offset, unread.value, good.value) == (4, None, b"good")
    ((mark, _),) = unread.headers
    assert isinstance(mark, UnreadMark)
    assert mark.unread.num_bytes == len(bomb)
    assert "sha256" in mark.unread.reason
    assert f"more than {most_inflated_bytes} bytes" in mark.unread.reason


@pytest.mark.parametrize("compression", [gzip, lz4, zstd])
def test_bytes_that_are_not_of_their_codec_are_one_unread_record(compression: int) -> None:
    unread, good = read(
        with_payload(a_batch(none, b"a"), compression, b"no such codec"), a_batch(none, b"good", offset=1)
    )
    assert (unread.offset, unread.value, good.value) == (0, None, b"good")


def test_a_codec_that_is_not_installed_and_a_header_name_that_is_no_text_are_unread_too() -> None:
    snappy = a_batch(none, b"a")
    struct.pack_into(">h", snappy, 21, 2)
    named = a_batch(none, b"a")
    named[named.index(b"h", header_bytes)] = 0xFF
    for batch in (snappy, named):
        (unread,) = read(batch)
        assert isinstance(unread.headers[0][0], UnreadMark)
