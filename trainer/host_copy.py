"""The host copy: the published tensors of one version in the trainer's memory, apart from the engine.

Publishing copies the engine's tensors here and writes from here, so the engine may train on while a version is written,
and a write that failed can be made again. Memory is taken once, for as many bytes as a version has, and used again by
every version: whoever wants to know what changed is shown old and new bytes, in pieces, before they are overwritten.

| state | `version` | until |
| --- | --- | --- |
| empty | None | it is filled |
| filling | None | every tensor came; where a fill ends early it stays so |
| whole | the version that it holds | it is filled again |
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.versions.blocks import segment_elements
from rollog.kernel.versions.identity import refuse_nan
from rollog.kernel.versions.tensors import type_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollog.kernel.versions.tensors import Export, TensorSink, TensorSpec

    Compare = Callable[[TensorSpec, int, memoryview, memoryview], None]

_most_threads = 8


class HostCopy:
    """Tensors of one version, in the order in which the engine hands them over.

    One thread at a time fills it or reads it; nobody may fill it while a version is written from it.
    """

    def __init__(self) -> None:
        self._table: tuple[TensorSpec, ...] = ()
        self._tensors: dict[str, memoryview] = {}
        self.version: int | None = None

    @property
    def table(self) -> tuple[TensorSpec, ...]:
        """The tensors that it holds."""
        return self._table

    @property
    def num_bytes(self) -> int:
        """Bytes that it holds."""
        return sum(map(len, self._tensors.values()))

    def fill(
        self, version: int, export: Export, *, compare: Compare | None = None, allows_nan: bool = False
    ) -> None:
        """Copy every tensor of `version`; when this returns, nothing of the engine is needed any more.

        `compare` gets, of each tensor that a whole copy held with the same name, type and shape, every piece, which is
        one segment of a patch: where it begins, its bytes before and now, both as they are until it returns. Several
        threads call it at once, each for other pieces. Raises EngineError for a NaN unless `allows_nan`, and whatever
        the engine and `compare` raise; the copy is of no use then, until it is filled again.
        """
        was_whole, self.version = self.version is not None, None
        filling = _Filling(self, compare if was_whole else None, allows_nan=allows_nan)
        with filling.pool:
            export(filling)
        filling.check_whole()
        self.version = version

    def export(self, sink: TensorSink) -> None:
        """Hand the tensors over as the engine did. Raises ValueError where the copy is not whole."""
        if self.version is None:
            raise ValueError("the host copy holds no whole version: fill it first")
        sink.begin(self._table)
        for spec in self._table:
            sink.add(spec, self._tensors[spec.name])

    def lay_out(self, table: Sequence[TensorSpec]) -> set[str]:
        """Make room for these tensors; returns the names of those that were held in this form before."""
        held = {spec.name for spec in set(self._table) & set(table)}
        # What is not of this version goes first: never more memory than one version takes.
        self._tensors = {name: tensor for name, tensor in self._tensors.items() if name in held}
        for spec in table:
            if spec.name not in held:
                self._tensors[spec.name] = np.empty(spec.num_bytes, dtype=np.uint8).data
        self._table = tuple(table)
        return held

    def tensor(self, name: str) -> memoryview:
        """Where the bytes of a tensor are."""
        return self._tensors[name]


class _Filling:
    """Takes the tensors of one export into a host copy; several threads share each tensor."""

    def __init__(self, copy: HostCopy, compare: Compare | None, *, allows_nan: bool) -> None:
        self._copy = copy
        self._compare = compare
        self._allows_nan = allows_nan
        self._comparable: set[str] = set()
        self._missing: set[str] = set()
        self.pool = ThreadPoolExecutor(
            min(_most_threads, os.cpu_count() or 1), thread_name_prefix="host-copy"
        )

    def begin(self, table: Sequence[TensorSpec]) -> None:
        """Make room."""
        self._comparable = self._copy.lay_out(table)
        self._missing = {spec.name for spec in table}

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        """Copy one tensor."""
        held = self._copy.tensor(spec.name)
        if len(data) != len(held):
            raise ValueError(f"tensor {spec.name} came with {len(data)} bytes, {len(held)} were announced")
        # A segment stays in the processor's cache while it is searched, compared and copied.
        num_bytes = segment_elements * type_bytes[spec.dtype]
        starts = range(0, len(data), num_bytes)
        pieces = [data[start : start + num_bytes] for start in starts]
        takes = self.pool.map if len(data) > num_bytes else map
        for _ in takes(lambda piece, start: self._take(spec, held, piece, start), pieces, starts):
            pass
        self._missing.discard(spec.name)
        if len(self._missing) == len(self._copy.table) // 2:
            reach(CrashPoint.HOST_COPY_HALF_FILLED)

    def check_whole(self) -> None:
        """Raise ValueError where the engine kept a tensor back."""
        if self._missing:
            raise ValueError(f"tensors were announced and did not come: {sorted(self._missing)[:3]}")

    def _take(self, spec: TensorSpec, held: memoryview, piece: memoryview, start: int) -> None:
        if not self._allows_nan:
            refuse_nan(spec, piece, start)
        before = held[start : start + len(piece)]
        if self._compare is not None and spec.name in self._comparable:
            self._compare(spec, start, before, piece)
        # numpy lets other threads go on while it copies.
        np.copyto(np.frombuffer(before, np.uint8), np.frombuffer(piece, np.uint8))
