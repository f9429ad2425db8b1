"""Tensors in two versions, and a reader of patches that shares no code with rollog's."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard
from hypothesis import strategies as st

from rollog.kernel.versions.blocks import Layout, segment_elements
from rollog.kernel.versions.patches import CodedChanges, apply

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollog.kernel.versions.bit_patterns import BitPatterns, Buffer, Positions

numbers_of_elements = st.one_of(
    st.integers(1, 40),
    st.sampled_from([255, 256, 257, 1000, segment_elements - 1, segment_elements, segment_elements + 300]),
)


@dataclass(frozen=True)
class TwoVersions:
    """One tensor before and after a step."""

    base: BitPatterns
    new: BitPatterns


@dataclass(frozen=True)
class Decoded:
    """Elements of a tensor, and what they become."""

    positions: Positions
    values: BitPatterns


def coded_changes(blocks: Sequence[Buffer], base: BitPatterns, *, name: str = "weight") -> CodedChanges:
    """Blocks of the tensor `base`."""
    return CodedChanges(blocks, Layout(base.size, base.itemsize), name=name)


def decode(blocks: Sequence[Buffer], base: BitPatterns, *, name: str = "weight") -> Iterator[Decoded]:
    """What becomes of all segments of a tensor."""
    coded = coded_changes(blocks, base, name=name)
    for changes in coded.decoded(coded.segments):
        positions = changes.offsets + changes.first
        yield Decoded(positions, base[positions] + changes.differences)


def patched(base: BitPatterns, *blocks: Buffer) -> BitPatterns:
    """The tensor that blocks make of `base`."""
    target, coded = base.copy(), coded_changes(blocks, base)
    for changes in coded.decoded(coded.segments):
        apply(changes, target)
    return target


def random_patterns(num_elements: int, item_size: int, seed: int) -> BitPatterns:
    draw = np.random.default_rng(seed)
    return np.frombuffer(draw.bytes(num_elements * item_size), dtype=f"<u{item_size}").copy()


@st.composite
def two_versions(draw: st.DrawFn, *, least_changes: int = 0) -> TwoVersions:
    """Any bit patterns; some elements become any others, neighbours in most cases."""
    item_size, num_elements = draw(st.sampled_from([1, 2, 4, 8])), draw(numbers_of_elements)
    base = random_patterns(num_elements, item_size, draw(st.integers(0, 1000)))
    places = st.one_of(
        st.integers(0, num_elements - 1), st.sampled_from([0, num_elements - 1, num_elements // 2])
    )
    differences = st.one_of(st.sampled_from([1, -1, 2]), st.integers(1, 2 ** (8 * item_size) - 1))
    changes = draw(
        st.dictionaries(places, differences, min_size=min(least_changes, num_elements), max_size=30)
    )
    new = base.copy()
    for place, difference in changes.items():
        new[place] = (int(base[place]) + difference) % 2 ** (8 * item_size)
    return TwoVersions(base, new)


def sparsely_changed(num_elements: int, item_size: int, *, seed: int = 0, share: float = 0.03) -> TwoVersions:
    """What a training step does: few elements move to a neighbouring value."""
    base = random_patterns(num_elements, item_size, seed)
    draw = np.random.default_rng(seed + 1)
    places = np.flatnonzero(draw.random(num_elements) < share)
    new = base.copy()
    new[places] += draw.choice(np.array([1, -1]).astype(base.dtype), places.size)
    return TwoVersions(base, new)


def read_by_another(block: bytes, base: list[int]) -> list[int]:
    """The tensor that a block makes of `base`, in plain Python after the layout in the docstrings."""
    magic, item_size, num_elements, num_changes = struct.unpack_from("<4sIQQ", block)
    assert (magic, num_elements) == (b"RWP1", len(base))
    new, at, seen = list(base), 24, 0
    for first in range(0, num_elements, 2**20):
        changes, gap_bytes, *lengths = struct.unpack_from("<IIII", block, at)
        at += 16
        if not changes:
            continue
        gaps, planes = (
            zstandard.decompress(block[begin : begin + length])
            for begin, length in ((at, lengths[0]), (at + lengths[0], lengths[1]))
        )
        at += sum(lengths)
        assert len(gaps) == gap_bytes
        place, number = first, 0
        for gap in gaps:
            place += gap
            if gap < 255:
                zigzag = sum(planes[plane * changes + number] << (8 * plane) for plane in range(item_size))
                difference = zigzag // 2 if zigzag % 2 == 0 else -(zigzag // 2) - 1
                new[place] = (base[place] + difference) % 2 ** (8 * item_size)
                place, number = place + 1, number + 1
        assert number == changes
        seen += changes
    assert (at, seen) == (len(block), num_changes)
    return new


def a_block(
    gaps: bytes, differences: bytes, /, *, item_size: int = 2, num_elements: int = 100, **others: Any
) -> bytes:
    """A block of one segment with true sizes, but for `others`."""
    num_changes = others.get("num_changes", sum(gap < 255 for gap in gaps))
    compressor = zstandard.ZstdCompressor(level=1)
    first = others.get("gaps_frame", compressor.compress(gaps))
    second = others.get("differences_frame", compressor.compress(differences))
    return b"".join(
        (
            struct.pack(
                "<4sIQQ",
                others.get("magic", b"RWP1"),
                item_size,
                num_elements,
                others.get("total", num_changes),
            ),
            struct.pack(
                "<IIII", num_changes, others.get("num_gap_bytes", len(gaps)), len(first), len(second)
            ),
            first,
            second,
            others.get("behind", b""),
        )
    )
