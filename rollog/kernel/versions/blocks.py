"""The block: what changed in one tensor between two versions, as bytes.

In bytes, all numbers unsigned and little-endian:

    header     4   "RWP1"
               4   bytes of an element: 1, 2, 4 or 8
               8   elements of the tensor, at least 1
               8   changed elements, at least 1
    segments   one for each 2**20 elements of the tensor, in order; the last one is for the rest
               4   changed elements in this segment, K
               4   bytes of gaps in this segment, G
               4   bytes of the frame of gaps
               4   bytes of the frame of differences
                   frame of gaps: zstd, G bytes as in `rollog.kernel.versions.gaps`
                   frame of differences: zstd, K elements as in `rollog.kernel.versions.differences`

All four numbers of a segment without changes are 0, and no frame follows. Otherwise 1 <= K <= G <= elements of the
segment. Positions count from the segment's first element, differences stand in the order of positions and are not 0.
Frames are as in `rollog.kernel.versions.frames`. Nothing follows the last segment.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Self

import numpy as np

from rollog.kernel.versions import frames
from rollog.kernel.versions.differences import packed_differences, unpacked_differences
from rollog.kernel.versions.gaps import escape, packed_gaps, unpacked_positions
from rollog.kernel.versions.tensors import type_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollog.kernel.versions.bit_patterns import BitPatterns, Positions
    from rollog.kernel.versions.tensors import TensorSpec

segment_elements = 1 << 20
"""Elements that are coded together: enough for zstd, few enough for a processor's cache."""

magic = b"RWP1"
_header = struct.Struct("<4sIQQ")
_segment_header = struct.Struct("<IIII")
_largest_share = (3, 5)
"""A block with more than this share of the tensor's bytes does not pay."""


class BlockRefused(ValueError):
    """A block is not one of this tensor."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a block has to fit: elements of the tensor, and bytes of each."""

    num_elements: int
    item_size: int

    @classmethod
    def of(cls, spec: TensorSpec) -> Self:
        """That of a tensor of the table."""
        item_size = type_bytes[spec.dtype]
        return cls(spec.num_bytes // item_size, item_size)

    @property
    def segments(self) -> range:
        """First elements of the segments."""
        return range(0, self.num_elements, segment_elements)

    def length(self, first: int) -> int:
        """Elements of the segment that begins there."""
        return min(segment_elements, self.num_elements - first)


@dataclass(frozen=True, slots=True)
class Segment:
    """The changes of one segment, their frames still compressed."""

    num_changes: int
    num_gap_bytes: int
    gaps: memoryview
    differences: memoryview


@dataclass(frozen=True, slots=True)
class CodedSegment:
    """The bytes of one segment, and how many changes they tell of."""

    num_changes: int
    data: bytes


nothing_changed = CodedSegment(0, _segment_header.pack(0, 0, 0, 0))


def coded_segment(
    offsets: Positions, old: BitPatterns, new: BitPatterns, compressor: frames.Compressor
) -> CodedSegment:
    """The elements at these offsets, rising, with their old and their new values."""
    if not offsets.size:
        return nothing_changed
    packed = packed_gaps(offsets)
    gaps = compressor.frame(packed.data)
    differences = compressor.frame(packed_differences(old, new).data)
    header = _segment_header.pack(offsets.size, packed.size, len(gaps), len(differences))
    return CodedSegment(offsets.size, b"".join((header, gaps, differences)))


def block_of(layout: Layout, segments: Iterable[CodedSegment]) -> bytes | None:
    """The block of all segments; empty without changes, None where it would not pay."""
    dense_bytes = layout.num_elements * layout.item_size
    coded: list[bytes] = []
    num_changes, num_bytes = 0, _header.size
    for segment in segments:
        coded.append(segment.data)
        num_changes += segment.num_changes
        num_bytes += len(segment.data)
        if num_changes and not _pays(num_bytes, dense_bytes):
            return None
    if not num_changes:
        return b""
    return b"".join((_header.pack(magic, layout.item_size, layout.num_elements, num_changes), *coded))


def segments_of(block: memoryview, layout: Layout) -> list[Segment]:
    """The segments of a block: all sizes are checked, frames by their headers; nothing is decompressed.

    Raises BlockRefused and FrameRefused.
    """
    num_changes = _checked_header(block, layout)
    position, segments = _header.size, []
    for first in layout.segments:
        segment = _segment(block, position, layout.length(first), layout.item_size)
        segments.append(segment)
        position += _segment_header.size + len(segment.gaps) + len(segment.differences)
    if position != len(block):
        _refuse(f"{len(block) - position} bytes follow its last segment")
    found = sum(segment.num_changes for segment in segments)
    if found != num_changes:
        _refuse(f"its segments have {found} changes, its header {num_changes}")
    return segments


def changes_of(coded: Sequence[Segment], num_elements: int, item_size: int) -> tuple[Positions, BitPatterns]:
    """Offsets and differences, none of them 0, of one segment of so many elements: those of several blocks add up.

    They do so modulo the size of an element; one that came back to what it was is left out. Raises BlockRefused and
    FrameRefused.
    """
    if len(coded) == 1:
        return _decompressed(coded[0], num_elements, item_size)
    sums = np.zeros(num_elements, dtype=f"<u{item_size}")
    for each in coded:
        offsets, differences = _decompressed(each, num_elements, item_size)
        sums[offsets] += differences
    offsets = np.flatnonzero(sums != 0)  # of truth values numpy is four times as fast
    return offsets, sums[offsets]


def _pays(num_bytes: int, dense_bytes: int) -> bool:
    numerator, denominator = _largest_share
    return num_bytes * denominator <= dense_bytes * numerator


def _checked_header(block: memoryview, layout: Layout) -> int:
    """How many changes the header tells of."""
    if len(block) < _header.size:
        _refuse(f"it has {len(block)} bytes, fewer than a header")
    start, item_size, num_elements, num_changes = _header.unpack_from(block)
    if start != magic:
        _refuse(f"it begins with {bytes(start)!r} instead of {magic!r}")
    if (item_size, num_elements) != (layout.item_size, layout.num_elements):
        _refuse(
            f"it is of {num_elements} elements of {item_size} bytes, the tensor has {layout.num_elements} of "
            f"{layout.item_size}"
        )
    if not 1 <= num_changes <= num_elements:
        _refuse(f"it tells of {num_changes} changes among {num_elements} elements")
    return int(num_changes)


def _segment(block: memoryview, position: int, num_elements: int, item_size: int) -> Segment:
    end = position + _segment_header.size
    if end > len(block):
        _refuse("it ends before its last segment")
    sizes = _segment_header.unpack_from(block, position)
    num_changes, num_gap_bytes, gaps_length, differences_length = sizes
    middle = end + gaps_length
    segment = Segment(
        num_changes, num_gap_bytes, block[end:middle], block[middle : middle + differences_length]
    )
    if not num_changes:
        if any(sizes):
            _refuse(f"a segment without changes has sizes {sizes}")
        return segment
    if not num_changes <= num_gap_bytes <= num_elements:
        _refuse(
            f"a segment of {num_elements} elements has {num_changes} changes and {num_gap_bytes} bytes of gaps"
        )
    if middle + differences_length > len(block):
        _refuse("it ends inside a segment")
    frames.check_frame(segment.gaps, num_gap_bytes)
    frames.check_frame(segment.differences, num_changes * item_size)
    return segment


def _decompressed(coded: Segment, num_elements: int, item_size: int) -> tuple[Positions, BitPatterns]:
    packed = frames.content(coded.gaps, coded.num_gap_bytes)
    offsets = unpacked_positions(packed)
    if offsets.size != coded.num_changes:
        _refuse(f"a segment has {offsets.size} positions for {coded.num_changes} changes")
    if packed[-1] == escape:
        _refuse("the gaps of a segment end with an escape")
    if offsets[-1] >= num_elements:
        _refuse(f"a segment of {num_elements} elements has a change at {offsets[-1]}")
    differences = unpacked_differences(
        frames.content(coded.differences, coded.num_changes * item_size), item_size
    )
    if not differences.all():
        _refuse("a changed element has the difference 0")
    return offsets, differences


def _refuse(reason: str) -> NoReturn:
    raise BlockRefused(reason)
