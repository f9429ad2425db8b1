"""What of one tensor changed between two versions: found, coded, decoded and applied, bit for bit.

A tensor equals its base (`same`), is coded in one block (`changed`), or is stored whole (`dense`), which is taken where
coding would save under 40 %. A block has differences from its base, which are added in place, once: elements that get
them twice are those of no version.

Blocks are those of `rollog.kernel.versions.blocks`. They come from a store that anybody may write to: sizes are checked
against the base before memory is taken, and whatever is wrong is a WeightsError. Beside its arguments and results,
coding and decoding need at most 64 MiB, however large a tensor is. Neither tensors nor the segments of one depend on
each other, so that several threads can share them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Literal

import numpy as np

from rollog.kernel.errors import WeightsError
from rollog.kernel.printable import printable
from rollog.kernel.versions import frames
from rollog.kernel.versions.bit_patterns import BitPatterns, Positions, check_pair
from rollog.kernel.versions.blocks import (
    BlockRefused,
    CodedSegment,
    Layout,
    Segment,
    block_of,
    changes_of,
    coded_segment,
    nothing_changed,
    segment_elements,
    segments_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from rollog.kernel.versions.bit_patterns import Buffer


_word_bytes = 8


@dataclass(frozen=True, slots=True)
class TensorPatch:
    """How a tensor is stored beside its base. `block` is empty unless `form` is `changed`."""

    form: Literal["same", "changed", "dense"]
    block: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What becomes of one segment, which begins at element `first`: offsets from there, rising, and differences."""

    first: int
    offsets: Positions
    differences: BitPatterns


@dataclass(frozen=True, slots=True, eq=False)
class SegmentChanges:
    """What changed in one segment: offsets from its first element, rising, what was there before, and what is now."""

    offsets: Positions
    old: BitPatterns
    new: BitPatterns


def encode(base: BitPatterns, new: BitPatterns) -> TensorPatch:
    """How `new` is stored beside `base`. Raises ValueError where they are not one tensor in two versions."""
    check_pair(base, new)
    starts = range(0, base.size, segment_elements)
    return encode_changes(
        Layout(new.size, new.itemsize),
        (
            changes_in(base[first : first + segment_elements], new[first : first + segment_elements])
            for first in starts
        ),
    )


def encode_changes(layout: Layout, segments: Iterable[SegmentChanges]) -> TensorPatch:
    """How a tensor is stored beside a base of which only what changed is known, segment by segment."""
    compressor = frames.Compressor()
    return _patch(
        block_of(layout, (coded_segment(each.offsets, each.old, each.new, compressor) for each in segments))
    )


class GivenUpError(Exception):
    """Combining patches was over before it was done."""


def combine(
    blocks: Sequence[Buffer],
    layout: Layout,
    *,
    name: str,
    pool: Executor,
    is_over: Callable[[], bool] = lambda: False,
) -> TensorPatch:
    """What the blocks of consecutive versions, oldest first, change together: no tensor is needed for it.

    Threads of `pool` share the segments. Raises WeightsError, which names the tensor `name`, for a block that is
    damaged or not of such a tensor, and GivenUpError where it `is_over` meanwhile, which those threads ask.
    """
    with _naming(name):
        tables = [segments_of(memoryview(block).cast("B"), layout) for block in blocks]

        def coded(number: int, first: int) -> CodedSegment:
            if is_over():
                raise GivenUpError
            return _combined([table[number] for table in tables], layout.length(first), layout.item_size)

        return _patch(block_of(layout, pool.map(coded, count(), layout.segments)))


def changes_in(base: BitPatterns, new: BitPatterns) -> SegmentChanges:
    """What changed between two equally long segments.

    Words of 8 bytes are compared first, then the elements of those that differ: few do, and this takes two thirds of
    the time of looking at every element.
    """
    end = base.size - base.size % (_word_bytes // base.itemsize)
    changes = _changes_of_words(base[:end], new[:end])
    if end == base.size:
        return changes
    rest = np.flatnonzero(base[end:] != new[end:]) + end
    offsets = np.concatenate((changes.offsets, rest))
    return SegmentChanges(offsets, base[offsets], new[offsets])


class CodedChanges:
    """What the blocks of consecutive versions, oldest first, change in one tensor; threads may share its segments.

    Raises WeightsError, which names the tensor `name`, for a block that is damaged or not of such a tensor: here for
    sizes and headers that are wrong, and where a segment is decoded for what is in it.
    """

    def __init__(self, blocks: Sequence[Buffer], layout: Layout, *, name: str) -> None:
        self._layout = layout
        self._name = name
        with _naming(name):
            self._tables = [segments_of(memoryview(block).cast("B"), layout) for block in blocks]

    @property
    def segments(self) -> range:
        """Numbers of all segments."""
        return range(len(self._layout.segments))

    def decoded(self, segments: range) -> Iterator[Changes]:
        """What becomes of these segments, by their numbers, one after another, of 1 to 2**20 elements each.

        An element that several blocks change comes once, with all that they add to it, and not at all where it comes
        back to what it was. Raises WeightsError as when it was made.
        """
        with _naming(self._name):
            for number in segments:
                coded = [table[number] for table in self._tables if table[number].num_changes]
                if coded:
                    first = self._layout.segments[number]
                    changes = Changes(
                        first, *changes_of(coded, self._layout.length(first), self._layout.item_size)
                    )
                    if changes.offsets.size:
                        yield changes
                    del changes  # before the next ones take memory


def apply(changes: Changes, target: BitPatterns) -> None:
    """Take one segment of `target`, the tensor that the blocks are of, to the last version, in place."""
    segment = target[changes.first : changes.first + segment_elements]
    # `take` is quicker than indexing, and adding in place would look up each element twice.
    values = segment.take(changes.offsets)
    values += changes.differences
    segment[changes.offsets] = values


def _changes_of_words(base: BitPatterns, new: BitPatterns) -> SegmentChanges:
    shift = _word_bytes.bit_length() - base.itemsize.bit_length()
    before, now = (elements.view(f"<u{_word_bytes}") for elements in (base, new))
    words = np.flatnonzero(before != now)
    # `take` is quicker than indexing, and what it takes stays in the processor's cache.
    old, current = before.take(words).view(base.dtype), now.take(words).view(base.dtype)
    if not shift:
        return SegmentChanges(words, old, current)
    within = np.flatnonzero(old != current)
    offsets = words.take(within >> shift) << shift
    offsets += within & ((1 << shift) - 1)
    return SegmentChanges(offsets, old.take(within), current.take(within))


def _patch(block: bytes | None) -> TensorPatch:
    if block is None:
        return TensorPatch("dense")
    return TensorPatch("changed", block) if block else TensorPatch("same")


def _combined(segments: Sequence[Segment], num_elements: int, item_size: int) -> CodedSegment:
    changed = [segment for segment in segments if segment.num_changes]
    if not changed:
        return nothing_changed
    offsets, differences = changes_of(changed, num_elements, item_size)
    # A block has differences alone: beside 0 they are the values.
    return coded_segment(offsets, np.zeros_like(differences), differences, frames.Compressor())


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """What is wrong with a block, as a WeightsError that names the tensor."""
    try:
        yield
    except (BlockRefused, frames.FrameRefused) as error:
        raise WeightsError(
            f"the patch of tensor {printable(name, limit=200)!r} is refused: {error}; the block was cut or altered, or "
            "belongs to other weights: fetch it again, or load a full form of the version"
        ) from error
