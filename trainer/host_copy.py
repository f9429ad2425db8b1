"""The host copy: the published tensors of one version in the trainer's memory, apart from the engine.

Publishing copies the engine's tensors here and writes from here, so the engine may train on while a version is written,
and a write that failed can be made again. Memory is taken once and used again by every version. Whoever wants to know
what changed is shown old and new bytes, in pieces:

| a version has | it is copied | and they are shown | memory |
| --- | --- | --- | --- |
| at most a shard's bytes | beside the one before | afterwards, by `show_before`; the engine does not wait | of two |
| more | over the one before | before that | of one |

| state | `version` | until |
| --- | --- | --- |
| empty | None | it is filled |
| filling | None | every tensor came; where a fill ends early it stays so |
| whole | the version that it holds | it is filled again |
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.versions.blocks import segment_elements
from rollog.kernel.versions.identity import has_nan, refuse_nan
from rollog.kernel.versions.shards import shard_bytes
from rollog.kernel.versions.tensors import total_bytes, type_bytes
from rollog.kernel.versions.threads import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollog.kernel.versions.tensors import Export, TensorSink, TensorSpec

    Compare = Callable[[TensorSpec, int, memoryview, memoryview], memoryview | None]
    """Gets a tensor, where a piece of it begins, and its bytes before and now; returns what is new, None for all."""

_thread_name = "host-copy"
_most_on_the_way = shard_bytes // 4
"""Memory that is kept while a copy is filled; tensors with more take memory that they give back at once."""


class HostCopy:
    """Tensors of one version, in the order in which the engine hands them over.

    One thread at a time fills it or reads it; nobody may fill it while a version is written from it. A version of at
    most `most_kept_bytes` is copied beside the one before where somebody wants to compare them. Reading calls
    `give_way` before each piece that is compared, and before each tensor that is exported.
    """

    def __init__(
        self, *, most_kept_bytes: int = shard_bytes, give_way: Callable[[], None] = lambda: None
    ) -> None:
        self._give_way = give_way
        self._most_kept_bytes = most_kept_bytes
        self._table: tuple[TensorSpec, ...] = ()
        self._tensors: dict[str, memoryview] = {}
        self._spare: dict[str, memoryview] = {}
        """Of the version before, where it is kept; memory for the next one."""
        self.version: int | None = None
        self.has_before = False
        """Whether the version before is kept, so that `show_before` shows what changed."""

    @property
    def table(self) -> tuple[TensorSpec, ...]:
        """The tensors that it holds."""
        return self._table

    @property
    def num_bytes(self) -> int:
        """Bytes of the version that it holds."""
        return sum(map(len, self._tensors.values()))

    def fill(
        self, version: int, export: Export, *, compare: Compare | None = None, allows_nan: bool = False
    ) -> None:
        """Copy every tensor of `version`; when this returns, nothing of the engine is needed any more.

        `compare` gets, of each tensor that a whole copy held with the same name, type and shape, every piece, which is
        one segment of a patch, with its bytes before and now, both as they are until it returns. Several threads call
        it at once, each for other pieces. Where the version before is kept instead, `has_before`, it gets
        nothing. Raises EngineError for a NaN unless `allows_nan`, and whatever the engine and `compare` raise; the copy
        is of no use then, until it is filled again.
        """
        was_whole, self.version, self.has_before = self.version is not None, None, False
        filling = _Filling(self, compare if was_whole else None, allows_nan=allows_nan)
        with filling.pool:
            export(filling)
        filling.check_whole()
        self.version = version

    def show_before(self, compare: Compare) -> None:
        """Show every piece of the version before and of this one as `fill` does; call where it `has_before`."""
        assert self.has_before

        def show(spec: TensorSpec, start: int, old: memoryview, new: memoryview) -> None:
            self._give_way()
            compare(spec, start, old, new)

        with threads(_thread_name) as pool:
            for spec in self._table:
                old, new = self._spare[spec.name], self._tensors[spec.name]
                starts = _starts(spec, new)
                for _ in pool.map(partial(show, spec), starts, _pieces(old, starts), _pieces(new, starts)):
                    pass

    def export(self, sink: TensorSink) -> None:
        """Hand the tensors over as the engine did. Raises ValueError where the copy is not whole."""
        if self.version is None:
            raise ValueError("the host copy holds no whole version: fill it first")
        sink.begin(self._table)
        for spec in self._table:
            self._give_way()
            sink.add(spec, self._tensors[spec.name])

    def lay_out(self, table: Sequence[TensorSpec], *, compares: bool) -> set[str]:
        """Make room for these tensors; returns the names of those that are to be compared with what is there."""
        is_same = tuple(table) == self._table
        self.has_before = compares and is_same and total_bytes(table) <= self._most_kept_bytes
        if self.has_before:
            self._tensors, self._spare = self._spare, self._tensors
        if not is_same:
            self._spare = {}
        same = {spec.name for spec in set(self._table) & set(table)}
        # What is not of this version goes first: never more memory than it takes.
        self._tensors = {name: tensor for name, tensor in self._tensors.items() if name in same}
        for spec in table:
            if spec.name not in self._tensors:
                self._tensors[spec.name] = np.empty(spec.num_bytes, dtype=np.uint8).data
        self._table = tuple(table)
        return same if compares and not self.has_before else set()

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
        self._on_the_way: memoryview | None = None
        """For each small tensor that is to be compared, one after another."""
        self.pool = threads(_thread_name)

    def begin(self, table: Sequence[TensorSpec]) -> None:
        """Make room."""
        self._comparable = self._copy.lay_out(table, compares=self._compare is not None)
        self._missing = {spec.name for spec in table}

    def memory_for(self, spec: TensorSpec) -> memoryview:
        """Its place in the copy; where what is there is still to be compared, memory on the way to it."""
        if spec.name not in self._comparable:
            return self._copy.tensor(spec.name)
        if spec.num_bytes > _most_on_the_way:
            return np.empty(spec.num_bytes, dtype=np.uint8).data
        if self._on_the_way is None:
            self._on_the_way = np.empty(_most_on_the_way, dtype=np.uint8).data
        return self._on_the_way[: spec.num_bytes]

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        """Copy one tensor, unless it was written into its place."""
        held = self._copy.tensor(spec.name)
        if len(data) != len(held):
            raise ValueError(f"tensor {spec.name} came with {len(data)} bytes, {len(held)} were announced")
        starts = _starts(spec, data)
        takes = self.pool.map if len(starts) > 1 else map
        for _ in takes(partial(self._take, spec), starts, _pieces(held, starts), _pieces(data, starts)):
            pass
        self._missing.discard(spec.name)
        if len(self._missing) == len(self._copy.table) // 2:
            reach(CrashPoint.HOST_COPY_HALF_FILLED)

    def check_whole(self) -> None:
        """Raise ValueError where the engine kept a tensor back."""
        if self._missing:
            raise ValueError(f"tensors were announced and did not come: {sorted(self._missing)[:3]}")

    def _take(self, spec: TensorSpec, start: int, held: memoryview, piece: memoryview) -> None:
        changed = None
        if self._compare is not None and spec.name in self._comparable:
            changed = self._compare(spec, start, held, piece)
        # What the copy held has no NaN.
        if not self._allows_nan and (changed is None or has_nan(spec.dtype, changed)):
            refuse_nan(spec, piece, start)
        if piece.obj is held.obj:
            return
        # numpy lets other threads go on while it copies.
        np.copyto(np.frombuffer(held, np.uint8), np.frombuffer(piece, np.uint8))


def _starts(spec: TensorSpec, data: memoryview) -> range:
    """Where the pieces begin: segments, which stay in the processor's cache while they are looked at."""
    return range(0, len(data), segment_elements * type_bytes[spec.dtype])


def _pieces(data: memoryview, starts: range) -> list[memoryview]:
    return [data[start : start + starts.step] for start in starts]
