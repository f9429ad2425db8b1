"""Whatever stands in a block, it is read as changes of its tensor or refused as a WeightsError, in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.patched_tensors import (
    TwoVersions,
    a_block,
    decode,
    random_patterns,
    sparsely_changed,
    two_versions,
)

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.blocks import segment_elements
from rollog.kernel.versions.patches import encode

if TYPE_CHECKING:
    from rollog.kernel.versions.bit_patterns import BitPatterns

base = random_patterns(100, 2, 0)
differences = b"\x02\x00"
"""One element of two bytes: + 1."""


def read(block: bytes, tensor: BitPatterns = base) -> None:
    """Decode, and check that what comes could be a patch."""
    last = -1
    for changes in decode([block], tensor):
        assert changes.positions.size == changes.values.size
        assert changes.positions[0] > last
        assert (np.diff(changes.positions) > 0).all()
        last = int(changes.positions[-1])
        assert last < tensor.size
        assert (tensor[changes.positions] != changes.values).all()


def frame(content: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(level=1, **options).compress(content)  # type: ignore[arg-type]


def streamed(content: bytes) -> bytes:
    """A frame that does not say how large its content is."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    return compressor.compress(content) + compressor.flush()


def with_window(content: bytes, exponent: int) -> bytes:
    """A frame of one raw block whose header asks for a window of 2**exponent bytes and says the content's size."""
    block = ((len(content) << 3) | 1).to_bytes(3, "little")
    descriptor = bytes([0b1000_0000, (exponent - 10) << 3])
    return zstandard.FRAME_HEADER + descriptor + struct.pack("<I", len(content)) + block + content


def test_the_block_that_the_others_are_forged_from_is_read() -> None:
    read(a_block(b"\x63", differences))


def test_a_frame_with_a_window_is_read_up_to_the_bound() -> None:
    read(a_block(b"\x03", differences, gaps_frame=with_window(b"\x03", 23)))


lying_about_one_byte = b"\x28\xb5\x2f\xfd\x20\x01" + b"\x4b\x00\x00\x03"
"""A frame that says 1 byte and repeats one byte 9 times."""
lying_about_two_bytes = b"\x28\xb5\x2f\xfd\x20\x02" + b"\x09\x00\x00\x03"
"""A frame that says 2 bytes and holds 1."""

forged = {
    "nothing": (b"", "0 bytes, fewer than a header"),
    "half a header": (a_block(b"\x03", differences)[:23], "23 bytes, fewer than a header"),
    "no segment": (a_block(b"\x03", differences)[:24], "ends before its last segment"),
    "half a segment header": (a_block(b"\x03", differences)[:39], "ends before its last segment"),
    "half a frame": (a_block(b"\x03", differences)[:-1], "ends inside a segment"),
    "no frames": (a_block(b"\x03", differences)[:40], "ends inside a segment"),
    "bytes behind": (a_block(b"\x03", differences, behind=b"\0"), "1 bytes follow its last segment"),
    "another format": (a_block(b"\x03", differences, magic=b"RWP2"), "begins with b'RWP2'"),
    "another item size": (
        a_block(b"\x03", bytes(4), item_size=4),
        "elements of 4 bytes, the tensor has 100 of 2",
    ),
    "no item size": (a_block(b"\x03", differences, item_size=0), "elements of 0 bytes"),
    "more elements": (a_block(b"\x03", differences, num_elements=101), "of 101 elements of 2 bytes"),
    "countless elements": (
        a_block(b"\x03", differences, num_elements=2**64 - 1),
        f"of {2**64 - 1} elements of 2 bytes",
    ),
    "no changes": (a_block(b"\x03", differences, total=0), "0 changes among 100 elements"),
    "more changes than elements": (
        a_block(b"\x03", differences, total=101),
        "101 changes among 100 elements",
    ),
    "countless changes": (a_block(b"\x03", differences, total=2**64 - 1), "changes among 100 elements"),
    "another total": (a_block(b"\x03", differences, total=2), "segments have 1 changes, its header 2"),
    "an empty segment with sizes": (
        a_block(b"\x03", differences, num_changes=0, total=1),
        "a segment without changes has sizes",
    ),
    "more changes than gaps": (a_block(b"\x03", bytes(4), num_changes=2), "2 changes and 1 bytes of gaps"),
    "a segment with too many changes": (
        a_block(bytes(101), bytes(202), total=100),
        "100 elements has 101 changes",
    ),
    "more gaps than elements": (
        a_block(b"\x03", differences, num_gap_bytes=101),
        "1 changes and 101 bytes of gaps",
    ),
    "more positions than changes": (
        a_block(b"\x03\x03", differences, num_changes=1),
        "2 positions for 1 changes",
    ),
    "fewer positions than changes": (
        a_block(b"\xff\x03", bytes(4), num_changes=2),
        "1 positions for 2 changes",
    ),
    "only escapes": (a_block(b"\xff\xff", differences, num_changes=1), "0 positions for 1 changes"),
    "an escape at the end": (a_block(b"\x03\xff", differences), "end with an escape"),
    "a position behind the end": (a_block(b"\x64", differences), "has a change at 100"),
    "a sum behind the end": (a_block(b"\x32\x32", differences * 2), "has a change at 101"),
    "an escape behind the end": (a_block(b"\xff\x00", differences), "has a change at 255"),
    "no difference": (a_block(b"\x03\x03", b"\x02\x00\x00\x00"), "has the difference 0"),
    "a frame without size": (
        a_block(b"\x03", differences, gaps_frame=streamed(b"\x03")),
        "does not say its size where 1 are due",
    ),
    "a bomb that says so": (
        a_block(b"\x03", differences, differences_frame=frame(bytes(1 << 30 >> 4))),
        f"holds {1 << 26} bytes where 2 are due",
    ),
    "a bomb that says otherwise": (
        a_block(b"\x03", differences, gaps_frame=lying_about_one_byte),
        "cannot be decompressed",
    ),
    "less than it says": (
        a_block(b"\x03", differences, differences_frame=lying_about_two_bytes),
        "cannot be decompressed",
    ),
    "a smaller frame": (
        a_block(b"\x03", differences, differences_frame=frame(b"\x02")),
        "holds 1 bytes where 2",
    ),
    "a window of 16 MiB": (
        a_block(b"\x03", differences, gaps_frame=with_window(b"\x03", 24)),
        "window of 16777216 bytes; the most is 8388608",
    ),
    "a window of 2 GiB and a cut frame": (
        a_block(b"\x03", differences, gaps_frame=with_window(b"\x03", 31)[:-1]),
        "window of 2147483648 bytes",
    ),
    "a cut frame": (a_block(b"\x03", differences, gaps_frame=frame(b"\x03")[:-1]), "cannot be decompressed"),
    "half a frame header": (a_block(b"\x03", differences, gaps_frame=frame(b"\x03")[:5]), "cannot be read"),
    "an empty frame": (a_block(b"\x03", differences, gaps_frame=b""), "there is no zstd frame"),
    "bytes in a frame's place": (
        a_block(b"\x03", differences, gaps_frame=b"\x00" * 12),
        "there is no zstd frame",
    ),
    "a skippable frame": (
        a_block(b"\x03", differences, gaps_frame=b"\x50\x2a\x4d\x18\x01\x00\x00\x00\x03"),
        "there is no zstd frame",
    ),
    "two frames": (a_block(b"\x03", differences, gaps_frame=frame(b"\x03") * 2), "cannot be decompressed"),
    "a byte behind a frame": (
        a_block(b"\x03", differences, gaps_frame=frame(b"\x03") + b"\0"),
        "cannot be decompressed",
    ),
    "a wrong checksum": (
        a_block(b"\x03", differences, gaps_frame=frame(b"\x03", write_checksum=True)[:-1] + b"\0"),
        "cannot be decompressed",
    ),
    "a dictionary": (
        a_block(b"\x03", differences, gaps_frame=b"\x28\xb5\x2f\xfd\x21\x07\x01" + b"\x09\x00\x00\x03"),
        "needs dictionary 7",
    ),
}


@pytest.mark.parametrize("name", forged)
def test_a_forged_block_is_refused_with_what_is_wrong_and_what_to_do(name: str) -> None:
    block, told = forged[name]
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError) as refused:
            read(block)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert told in str(refused.value)
    assert str(refused.value).startswith("the patch of tensor 'weight' is refused: ")
    assert "fetch it again, or load a full form of the version" in str(refused.value)


def test_the_name_of_a_tensor_from_a_manifest_is_printable_in_the_error() -> None:
    with pytest.raises(WeightsError) as refused:
        list(decode([b""], base, name="\x1b[2J" + "x" * 10_000))
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_a_block_of_another_tensor_is_refused_although_it_is_whole() -> None:
    pair = sparsely_changed(3000, 2)
    block = encode(pair.base, pair.new).block
    read(block, pair.base)
    for other in (pair.base[:-1], pair.base.astype("<u4"), np.append(pair.base, pair.base[:1])):
        with pytest.raises(WeightsError, match=r"it is of 3000 elements of 2 bytes"):
            read(block, other)


def test_changes_come_only_when_all_sizes_are_right_and_until_a_segment_is_damaged() -> None:
    tensor = np.zeros(segment_elements + 100, dtype="<u2")
    new = tensor.copy()
    new[5] = 1
    first = encode(tensor, new).block
    assert first[-16:] == bytes(16)  # the second segment has no changes
    header = first[:16] + struct.pack("<Q", 2)

    def with_second(segment: bytes) -> tuple[list[int], str]:
        came: list[int] = []
        decoded = decode([header + first[24:-16] + segment], tensor)
        with pytest.raises(WeightsError) as refused:
            came.extend(position for changes in decoded for position in changes.positions.tolist())
        return came, str(refused.value)

    came, told = with_second(a_block(b"\x64", differences)[24:])
    assert (came, "has a change at 100" in told) == ([5], True)
    came, told = with_second(a_block(b"\x03", differences, num_gap_bytes=101)[24:])
    assert (came, "101 bytes of gaps" in told) == ([], True)


@given(
    pair=two_versions(least_changes=3),
    cuts=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from(["flip", "cut", "insert", "copy"]), st.binary(max_size=6)),
        min_size=1,
        max_size=4,
    ),
)
def test_a_damaged_block_is_read_as_changes_or_refused(
    pair: TwoVersions, cuts: list[tuple[float, str, bytes]]
) -> None:
    block = bytearray(encode(pair.base, pair.new).block)
    for share, way, junk in cuts:
        place = int(share * len(block))
        match way:
            case "flip":
                for offset, byte in enumerate(junk):
                    if place + offset < len(block):
                        block[place + offset] ^= byte
            case "cut":
                del block[place : place + len(junk)]
            case "insert":
                block[place:place] = junk
            case _:
                block[place : place + 16] = block[:16]
    is_read_or_refused(bytes(block), pair.base)


small = st.integers(0, 2**64 - 1) | st.integers(0, 300)


@given(
    content=st.tuples(st.binary(max_size=120), st.binary(max_size=260)),
    sizes=st.fixed_dictionaries(
        {"item_size": st.sampled_from([0, 1, 2, 4, 8, 255]), "num_elements": st.just(100) | small},
        optional={
            "total": small,
            "num_gap_bytes": st.integers(0, 2**32 - 1),
            "num_changes": st.integers(0, 2**32 - 1),
        },
    ),
)
def test_whole_frames_with_any_content_and_any_sizes_are_read_as_changes_or_refused(
    content: tuple[bytes, bytes], sizes: dict[str, Any]
) -> None:
    is_read_or_refused(a_block(*content, **sizes), base)


@given(
    st.integers(1, 60).flatmap(
        lambda n: st.tuples(st.binary(min_size=n, max_size=n), st.binary(min_size=2 * n, max_size=2 * n))
    )
)
def test_gaps_and_differences_of_fitting_numbers_are_read_as_changes_or_refused(
    content: tuple[bytes, bytes],
) -> None:
    gaps = bytes(gap % 4 for gap in content[0])
    is_read_or_refused(a_block(gaps, content[1]), base)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(block: bytes) -> None:
    with pytest.raises(WeightsError):
        read(block)
    with pytest.raises(WeightsError):
        read(a_block(b"\x03", differences)[:24] + block)


def is_read_or_refused(block: bytes, tensor: BitPatterns) -> None:
    tracemalloc.start()
    try:
        with suppress(WeightsError):
            read(block, tensor)
        # Results and scratch of one segment, and what hypothesis and the checks here hold.
        assert tracemalloc.get_traced_memory()[1] < (1 << 20) + 70 * min(tensor.size, segment_elements)
    finally:
        tracemalloc.stop()
