"""What changes between two versions, noted while the host copy of the first is overwritten by the second.

Old values are gone afterwards, so where anything changes in a word of 8 bytes its position and its old bytes are kept.
Comparing words takes two thirds of the time that single elements take, and the training thread waits for it; which
elements of a word changed is found when the version is written. With 2 % of elements changed, in 16 bits, this takes 12
% of the bytes of a version, and never more than two shards: where more changes, the version is stored in full.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.versions.bit_patterns import bit_patterns
from rollog.kernel.versions.blocks import segment_elements
from rollog.kernel.versions.patches import SegmentChanges, TensorPatch, changed_offsets, encode_changes
from rollog.kernel.versions.shards import shard_bytes
from rollog.kernel.versions.tensors import total_bytes, type_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollog.kernel.versions.bit_patterns import BitPatterns
    from rollog.kernel.versions.tensors import TensorSpec
    from schemas.arrays import Int32Array

_narrow_types = {"BF16", "F16"}
_word_bytes = 8
_largest_share = 0.9
"""Of the words of a segment: with more of them changed, coding does not pay."""


def may_pay(table: Sequence[TensorSpec]) -> bool:
    """Whether few elements change in a step: in float32 all do, in 16 bits most steps are too small to be seen."""
    narrow = total_bytes([spec for spec in table if spec.dtype in _narrow_types])
    return 2 * narrow > total_bytes(table)


@dataclass(frozen=True, slots=True, eq=False)
class _Words:
    """The words of a segment that changed, and what they were; single elements in one that is not made of words."""

    offsets: Int32Array
    old: BitPatterns

    @property
    def num_bytes(self) -> int:
        return self.offsets.nbytes + self.old.nbytes

    def elements(self, segment: BitPatterns) -> SegmentChanges:
        """The elements that changed; `segment` has the new ones."""
        size = segment.itemsize
        if self.old.itemsize == size:
            return SegmentChanges(self.offsets.astype(np.intp), self.old)
        old = self.old.view(segment.dtype)
        new = segment.view(self.old.dtype)[self.offsets].view(segment.dtype)
        within = changed_offsets(old, new)
        each = self.old.itemsize // size
        return SegmentChanges(
            self.offsets.astype(np.intp)[within // each] * each + within % each, old[within]
        )


class NotedChanges:
    """Takes what `HostCopy.fill` shows; several threads may note at once."""

    def __init__(self, *, most_bytes: int = 2 * shard_bytes) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._segments: dict[str, dict[int, _Words]] = {}
        self._dense: set[str] = set()
        self._lock = threading.Lock()

    def note(self, spec: TensorSpec, start: int, old: memoryview, new: memoryview) -> None:
        """Note what changes in one piece of a tensor that begins at byte `start`, where a segment does."""
        size = type_bytes[spec.dtype]
        segment_bytes = segment_elements * size
        for first in range(0, len(new), segment_bytes):
            if spec.name in self._dense or self.are_too_many:
                break
            end = first + segment_bytes
            self._keep(
                spec.name, (start + first) // segment_bytes, _changed(old[first:end], new[first:end], size)
            )

    @property
    def are_too_many(self) -> bool:
        """Whether there was no room for all of them."""
        return self._num_bytes > self._most_bytes

    def patch(self, spec: TensorSpec, data: memoryview) -> TensorPatch:
        """How a tensor with these bytes is stored beside what it was."""
        if not spec.num_bytes:
            return TensorPatch("same")
        noted = self._segments.get(spec.name)
        if spec.name in self._dense or noted is None:
            return TensorPatch("dense")
        elements = bit_patterns(data, type_bytes[spec.dtype])
        return encode_changes(elements, _refined(elements, noted))

    def _keep(self, name: str, number: int, words: _Words | None) -> None:
        with self._lock:
            segments = self._segments.setdefault(name, {})
            if words is None or name in self._dense:
                self._dense.add(name)
                segments.clear()
                return
            segments[number] = words
            self._num_bytes += words.num_bytes


def _changed(old: memoryview, new: memoryview, size: int) -> _Words | None:
    """What changed in a segment; None for so much that it is stored whole."""
    unit = size if len(new) % _word_bytes else _word_bytes
    before, now = bit_patterns(old, unit), bit_patterns(new, unit)
    offsets = changed_offsets(before, now)
    if offsets.size > _largest_share * now.size:
        return None
    # int32 is enough within a segment, and half of what numpy counts with.
    return _Words(offsets.astype(np.int32), before[offsets])


def _refined(elements: BitPatterns, noted: dict[int, _Words]) -> Iterator[SegmentChanges]:
    for number in range(len(noted)):
        first = number * segment_elements
        yield noted[number].elements(elements[first : first + segment_elements])
