"""What changed between two versions, noted from the bytes of both.

Where a version is copied over the one before, old values are gone afterwards: so they are noted, each with its place,
while both are there. With 2 % of the elements changed, in 16 bits, this takes 4 % of the bytes of a version, and never
more than two shards: where more changes, the version is stored in full.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from rollog.kernel.versions.bit_patterns import bit_patterns
from rollog.kernel.versions.blocks import Layout, segment_elements
from rollog.kernel.versions.patches import SegmentChanges, TensorPatch, changes_in, encode_changes
from rollog.kernel.versions.shards import shard_bytes
from rollog.kernel.versions.tensors import total_bytes, type_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rollog.kernel.versions.bit_patterns import BitPatterns, Positions
    from rollog.kernel.versions.tensors import TensorSpec

_narrow_types = {"BF16", "F16"}
_largest_share = 0.9
"""Of the elements of a segment: with more of them changed the tensor is stored whole."""
_part_elements = 1 << 16
"""Within so many elements a place takes two bytes."""
_part_ends = np.arange(_part_elements, segment_elements + 1, _part_elements)


def may_pay(table: Sequence[TensorSpec]) -> bool:
    """Whether few elements change in a step: in float32 all do, in 16 bits most steps are too small to be seen."""
    narrow = total_bytes([spec for spec in table if spec.dtype in _narrow_types])
    return 2 * narrow > total_bytes(table)


@dataclass(frozen=True, slots=True, eq=False)
class _Noted:
    """The elements of a segment that changed: their offsets within each part, how many each has, what they were."""

    offsets: NDArray[np.uint16]
    part_sizes: Positions
    old: BitPatterns

    @classmethod
    def of(cls, changes: SegmentChanges) -> Self:
        ends = np.searchsorted(changes.offsets, _part_ends)
        return cls(changes.offsets.astype(np.uint16), np.diff(ends, prepend=0), changes.old)

    @property
    def num_bytes(self) -> int:
        return self.offsets.nbytes + self.part_sizes.nbytes + self.old.nbytes

    def changes(self, segment: BitPatterns) -> SegmentChanges:
        """The same, with what `segment` has there now."""
        offsets = np.repeat(_part_ends - _part_elements, self.part_sizes)
        offsets += self.offsets
        return SegmentChanges(offsets, self.old, segment[offsets])


class NotedChanges:
    """Takes what a `HostCopy` shows; several threads may note at once."""

    def __init__(self, *, most_bytes: int = 2 * shard_bytes) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._segments: dict[str, dict[int, _Noted]] = {}
        self._dense: set[str] = set()
        self._lock = threading.Lock()

    def note(self, spec: TensorSpec, start: int, old: memoryview, new: memoryview) -> memoryview | None:
        """Note what changes in one segment of a tensor, which begins at byte `start`; returns what a `Compare` does."""
        if spec.name in self._dense or self.are_too_many:
            return None
        size = type_bytes[spec.dtype]
        changes = changes_in(bit_patterns(old, size), bit_patterns(new, size))
        does_pay = changes.offsets.size * size <= _largest_share * len(new)
        self._keep(spec.name, start // (segment_elements * size), _Noted.of(changes) if does_pay else None)
        return changes.new.view(np.uint8).data if does_pay else None

    @property
    def are_too_many(self) -> bool:
        """Whether there was no room for all of them, or they were let go."""
        return self._num_bytes > self._most_bytes

    def let_go(self) -> None:
        """Give their memory back: the version is stored in full."""
        self._segments.clear()
        self._most_bytes = -1

    def patch(self, spec: TensorSpec, data: memoryview) -> TensorPatch:
        """How a tensor with these bytes is stored beside what it was."""
        if not spec.num_bytes:
            return TensorPatch("same")
        noted = self._segments.get(spec.name)
        if spec.name in self._dense or noted is None:
            return TensorPatch("dense")
        elements = bit_patterns(data, type_bytes[spec.dtype])
        layout = Layout(elements.size, elements.itemsize)
        return encode_changes(
            layout,
            (
                noted[number].changes(elements[first : first + segment_elements])
                for number, first in enumerate(layout.segments)
            ),
        )

    def _keep(self, name: str, number: int, noted: _Noted | None) -> None:
        with self._lock:
            segments = self._segments.setdefault(name, {})
            if noted is None or name in self._dense:
                self._dense.add(name)
                segments.clear()
                return
            segments[number] = noted
            self._num_bytes += noted.num_bytes
