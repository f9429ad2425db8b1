"""What patches make of a version: absolute values, kept in a file until they are written into the version's shards.

Writing them twice does no harm, so whoever died while writing them is followed by one who writes them again, with
nothing but this file. It is of this process or one like it, on this machine, and is compared by its result.

The file: records one behind the other, those of one segment in order, numbers unsigned and little-endian:

    4   number of the tensor, in the order of the manifest
    4   0 for a run of elements, 1 for single ones
    8   the first element, where a segment begins
    4   elements, K
        of single ones K offsets from the first element, of 4 bytes each
        K elements
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import numpy as np

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.bit_patterns import bit_patterns
from rollog.kernel.versions.blocks import segment_elements
from rollog.kernel.versions.patches import apply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rollog.kernel.versions.bit_patterns import BitPatterns
    from rollog.kernel.versions.blocks import Layout
    from rollog.kernel.versions.patches import Changes
    from schemas.arrays import UInt8Array

_header = struct.Struct("<IIQI")
_run, _single = 0, 1
_offset_bytes = 4


class ValuesWriter:
    """Writes records; several threads may, each for other segments."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._lock = threading.Lock()

    def write_whole(self, number: int, elements: BitPatterns, segments: range) -> None:
        """All elements of these segments of a tensor, by their numbers."""
        for segment in segments:
            first = segment * segment_elements
            self._write_run(number, first, elements[first : first + segment_elements])

    def write_changes(self, number: int, changes: Changes, elements: BitPatterns) -> None:
        """What changes in one segment of a tensor, which has `elements` now."""
        first = int(changes.positions[0]) // segment_elements * segment_elements
        segment, offsets = elements[first : first + segment_elements], changes.positions - first
        if offsets.size * (_offset_bytes + segment.itemsize) > segment.nbytes:
            changed = segment.copy()
            apply(changed, offsets, changes.values)
            self._write_run(number, first, changed)
            return
        header = _header.pack(number, _single, first, offsets.size)
        self._write(header, offsets.astype("<u4").data, changes.values.data)

    def _write_run(self, number: int, first: int, elements: BitPatterns) -> None:
        self._write(_header.pack(number, _run, first, elements.size), elements.data)

    def _write(self, *parts: bytes | memoryview) -> None:
        with self._lock:
            for part in parts:
                self._file.write(part)


@dataclass(frozen=True, slots=True)
class _Record:
    is_run: bool
    first: int
    num_elements: int
    begin: int
    end: int


class DecodedValues:
    """Such a file, to be written into tensors. Raises WeightsError where it is not whole, or of other tensors."""

    def __init__(self, path: Path, layouts: Sequence[Layout]) -> None:
        """`layouts` are those of the tensors, in the order of the manifest: each record has to fit its tensor."""
        self._data: UInt8Array = (
            np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
        )
        self._layouts = layouts
        try:
            self._records = self._indexed()
        except (struct.error, IndexError) as error:
            raise WeightsError(f"{path.name} is not whole: {error}; the version is fetched anew") from error

    def write_into(self, elements: BitPatterns, number: int, places: range) -> None:
        """Overwrite what changes in those segments of one tensor that begin at one of these elements."""
        for record in self._records.get(number, ()):
            if record.first not in places:
                continue
            target = elements[record.first : record.first + segment_elements]
            data = self._data[record.begin : record.end]
            if record.is_run:
                target[: record.num_elements] = bit_patterns(data.data, elements.itemsize)
                continue
            middle = record.num_elements * _offset_bytes
            offsets = bit_patterns(data[:middle].data, _offset_bytes).astype(np.intp)
            apply(target, offsets, bit_patterns(data[middle:].data, elements.itemsize))

    def _indexed(self) -> Mapping[int, Sequence[_Record]]:
        found: dict[int, list[_Record]] = {}
        position, view = 0, self._data.data
        while position < len(view):
            number, kind, first, num_elements = _header.unpack_from(view, position)
            layout = self._layouts[number]
            if first not in layout.segments or not 0 < num_elements <= layout.length(first):
                raise WeightsError(f"decoded values do not fit tensor {number}; the version is fetched anew")
            begin = position + _header.size
            each = layout.item_size + (_offset_bytes if kind == _single else 0)
            position = begin + num_elements * each
            if position > len(view):
                raise IndexError("it ends inside a record")
            record = _Record(kind == _run, first, num_elements, begin, position)
            found.setdefault(number, []).append(record)
        return found
