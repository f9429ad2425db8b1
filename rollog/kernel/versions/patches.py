"""What of one tensor changed between two versions: found, coded, decoded and applied, bit for bit.

A tensor equals its base (`same`), is coded in one block (`changed`), or is stored whole (`dense`), which is taken where
coding would save under 40 %. A block decodes against its base into positions and absolute values. Writing those twice
does no harm: whoever died while writing them is followed by one who writes them again.

The block, in bytes, all numbers unsigned and little-endian:

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

A block comes from a store that anybody may write to: sizes are checked against the base before memory is taken, and
whatever is wrong is a WeightsError. Beside its arguments and results, coding and decoding need at most 64 MiB, however
large a tensor is. Tensors do not depend on each other, so that several threads can share them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn

import numpy as np

from rollog.kernel.errors import WeightsError
from rollog.kernel.printable import printable
from rollog.kernel.versions import frames
from rollog.kernel.versions.bit_patterns import BitPatterns, Positions, check_pair, check_tensor
from rollog.kernel.versions.differences import packed_differences, unpacked_differences
from rollog.kernel.versions.gaps import escape, packed_gaps, unpacked_positions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rollog.kernel.versions.bit_patterns import Buffer

segment_elements = 1 << 20
"""Elements that are coded together: enough for zstd, few enough for a processor's cache."""

magic = b"RWP1"
_header = struct.Struct("<4sIQQ")
_segment_header = struct.Struct("<IIII")
_largest_share = (3, 5)
"""A block with more than this share of the tensor's bytes does not pay."""


@dataclass(frozen=True, slots=True)
class TensorPatch:
    """How a tensor is stored beside its base. `block` is empty unless `form` is `changed`."""

    form: Literal["same", "changed", "dense"]
    block: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """Elements of a tensor, and the bit patterns that they have from now on: equally many, positions rising."""

    positions: Positions
    values: BitPatterns


@dataclass(frozen=True, slots=True)
class _Segment:
    num_changes: int
    num_gap_bytes: int
    gaps: memoryview
    differences: memoryview


@dataclass(frozen=True, slots=True, eq=False)
class SegmentChanges:
    """What changed in one segment: offsets from its first element, rising, and what was there before."""

    offsets: Positions
    old: BitPatterns


def encode(base: BitPatterns, new: BitPatterns) -> TensorPatch:
    """How `new` is stored beside `base`. Raises ValueError where they are not one tensor in two versions."""
    check_pair(base, new)
    starts = range(0, base.size, segment_elements)
    return encode_changes(
        new,
        (
            changes_in(base[first : first + segment_elements], new[first : first + segment_elements])
            for first in starts
        ),
    )


def encode_changes(new: BitPatterns, segments: Iterable[SegmentChanges]) -> TensorPatch:
    """How `new` is stored beside a base of which only what changed is known, segment by segment."""
    compressor = frames.Compressor()
    coded: list[bytes] = []
    num_changes, num_bytes = 0, _header.size
    for number, segment in enumerate(segments):
        values = new[number * segment_elements : (number + 1) * segment_elements][segment.offsets]
        coded.append(_coded_segment(segment, values, compressor))
        num_changes += segment.offsets.size
        num_bytes += len(coded[-1])
        if num_changes and not _pays(num_bytes, new.nbytes):
            return TensorPatch("dense")
    if not num_changes:
        return TensorPatch("same")
    header = _header.pack(magic, new.dtype.itemsize, new.size, num_changes)
    return TensorPatch("changed", b"".join([header, *coded]))


def changes_in(base: BitPatterns, new: BitPatterns) -> SegmentChanges:
    """What changed between two equally long segments."""
    offsets = changed_offsets(base, new)
    return SegmentChanges(offsets, base[offsets])


def changed_offsets(base: BitPatterns, new: BitPatterns) -> Positions:
    """Where two equally long pieces of a tensor differ."""
    return np.flatnonzero(base != new)


def decode(blocks: Sequence[Buffer], base: BitPatterns, *, name: str) -> Iterator[Changes]:
    """What becomes of `base` by one block, or by the blocks of consecutive versions, oldest first.

    Changes come segment by segment, of at most 2**20 elements each. An element that several blocks change comes once,
    with its last value. `base` stays as it is, and must not be written to before the last changes came: a block may
    turn out to be damaged only there.

    Raises WeightsError, which names the tensor `name`, for a block that is damaged or not of this tensor.
    """
    check_tensor(base)
    try:
        tables = [_segments(memoryview(block).cast("B"), base) for block in blocks]
        for number, first in enumerate(range(0, base.size, segment_elements)):
            segment = base[first : first + segment_elements]
            coded = [table[number] for table in tables if table[number].num_changes]
            if coded:
                yield _changes(coded, segment, first)
    except (_BlockRefused, frames.FrameRefused) as error:
        raise WeightsError(
            f"the patch of tensor {printable(name, limit=200)!r} is refused: {error}; the block was cut or altered, or "
            "belongs to other weights: fetch it again, or load a full form of the version"
        ) from error


def apply(target: BitPatterns, positions: Positions, values: BitPatterns) -> None:
    """Write decoded values into `target`, in place. Raises WeightsError, and writes nothing, where they do not fit."""
    if positions.shape != values.shape or values.dtype != target.dtype:
        raise WeightsError(
            f"{positions.size} positions and {values.size} values of {values.dtype} do not fit a tensor of "
            f"{target.dtype}: decode the patch again"
        )
    if positions.size and (positions.min() < 0 or positions.max() >= target.size):
        raise WeightsError(
            f"positions {positions.min()} to {positions.max()} are not all among the {target.size} elements of the "
            "tensor: decode the patch again"
        )
    target[positions] = values


class _BlockRefused(ValueError):
    """A block is not one of this tensor."""


def _pays(num_bytes: int, dense_bytes: int) -> bool:
    numerator, denominator = _largest_share
    return num_bytes * denominator <= dense_bytes * numerator


def _coded_segment(changes: SegmentChanges, values: BitPatterns, compressor: frames.Compressor) -> bytes:
    if not changes.offsets.size:
        return _segment_header.pack(0, 0, 0, 0)
    packed = packed_gaps(changes.offsets)
    gaps = compressor.frame(packed.data)
    differences = compressor.frame(packed_differences(changes.old, values).data)
    header = _segment_header.pack(changes.offsets.size, packed.size, len(gaps), len(differences))
    return b"".join((header, gaps, differences))


def _segments(block: memoryview, base: BitPatterns) -> list[_Segment]:
    """The segments of a block: all sizes are checked, frames by their headers; nothing is decompressed."""
    item_size = base.dtype.itemsize
    num_changes = _checked_header(block, base)
    position, segments = _header.size, []
    for first in range(0, base.size, segment_elements):
        segment = _segment(block, position, min(segment_elements, base.size - first), item_size)
        segments.append(segment)
        position += _segment_header.size + len(segment.gaps) + len(segment.differences)
    if position != len(block):
        _refuse(f"{len(block) - position} bytes follow its last segment")
    found = sum(segment.num_changes for segment in segments)
    if found != num_changes:
        _refuse(f"its segments have {found} changes, its header {num_changes}")
    return segments


def _checked_header(block: memoryview, base: BitPatterns) -> int:
    """How many changes the header tells of."""
    if len(block) < _header.size:
        _refuse(f"it has {len(block)} bytes, fewer than a header")
    start, item_size, num_elements, num_changes = _header.unpack_from(block)
    if start != magic:
        _refuse(f"it begins with {bytes(start)!r} instead of {magic!r}")
    if (item_size, num_elements) != (base.dtype.itemsize, base.size):
        _refuse(
            f"it is of {num_elements} elements of {item_size} bytes, the tensor has {base.size} of "
            f"{base.dtype.itemsize}"
        )
    if not 1 <= num_changes <= num_elements:
        _refuse(f"it tells of {num_changes} changes among {num_elements} elements")
    return int(num_changes)


def _segment(block: memoryview, position: int, num_elements: int, item_size: int) -> _Segment:
    end = position + _segment_header.size
    if end > len(block):
        _refuse("it ends before its last segment")
    sizes = _segment_header.unpack_from(block, position)
    num_changes, num_gap_bytes, gaps_length, differences_length = sizes
    middle = end + gaps_length
    segment = _Segment(
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


def _changes(coded: Sequence[_Segment], segment: BitPatterns, first: int) -> Changes:
    """What becomes of the segment that begins at element `first`. Arrays are reused: they may be large."""
    offsets, values = _decompressed(coded[0], segment) if len(coded) == 1 else _summed(coded, segment)
    values += segment[offsets]
    offsets += first
    return Changes(offsets, values)


def _summed(coded: Sequence[_Segment], segment: BitPatterns) -> tuple[Positions, BitPatterns]:
    """Offsets and differences of one segment: those of several blocks add up, modulo the size of an element."""
    sums, is_changed = np.zeros_like(segment), np.zeros(segment.size, dtype=np.bool_)
    for each in coded:
        offsets, differences = _decompressed(each, segment)
        sums[offsets] += differences
        is_changed[offsets] = True
    offsets = np.flatnonzero(is_changed)
    return offsets, sums[offsets]


def _decompressed(coded: _Segment, segment: BitPatterns) -> tuple[Positions, BitPatterns]:
    item_size = segment.dtype.itemsize
    packed = frames.content(coded.gaps, coded.num_gap_bytes)
    offsets = unpacked_positions(packed)
    if offsets.size != coded.num_changes:
        _refuse(f"a segment has {offsets.size} positions for {coded.num_changes} changes")
    if packed[-1] == escape:
        _refuse("the gaps of a segment end with an escape")
    if offsets[-1] >= segment.size:
        _refuse(f"a segment of {segment.size} elements has a change at {offsets[-1]}")
    differences = unpacked_differences(
        frames.content(coded.differences, coded.num_changes * item_size), item_size
    )
    if not differences.all():
        _refuse("a changed element has the difference 0")
    return offsets, differences


def _refuse(reason: str) -> NoReturn:
    raise _BlockRefused(reason)
