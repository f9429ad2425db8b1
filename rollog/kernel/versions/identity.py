"""The content digest: what a version is, whatever form it is stored in.

It is the sha256 of a text: `rollog-weights-1`, a newline, and JSON (ASCII, sorted keys, no spaces) of

    {"adapter": null, "tensors": [[name, dtype, shape, [leaf, ...]], ...]}

`adapter` is not null where there are low-rank adapters (`rollog.kernel.versions.adapter`). Tensors stand there with
names sorted by their bytes. A leaf is the sha256 of up to 16 MiB of the tensor's little-endian row-major bytes, so
that threads can share a tensor, and whoever has one tensor can check it alone. A tensor without elements has no leaf.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from rollog.kernel.errors import EngineError
from rollog.kernel.versions.threads import threads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from rollog.kernel.versions.adapter import Adapter
    from rollog.kernel.versions.tensors import Export, TensorSpec

first_line = b"rollog-weights-1\n"
leaf_bytes = 16 << 20
_worth_a_thread_bytes = 1 << 20
_part_bytes = 1 << 20


class _Infinities(NamedTuple):
    """Bit patterns of both infinities, as numbers with and without a sign: whatever is larger than its own is a NaN.

    Numbers with a sign bit are negative in `signed` and the largest ones in `unsigned`. F8_E4M3 has no infinity: there
    these are the largest and the smallest number.
    """

    signed: type[np.signedinteger[Any]]
    positive: int
    unsigned: type[np.unsignedinteger[Any]]
    negative: int


_infinities = {
    "F64": _Infinities(np.int64, 0x7FF0_0000_0000_0000, np.uint64, 0xFFF0_0000_0000_0000),
    "F32": _Infinities(np.int32, 0x7F80_0000, np.uint32, 0xFF80_0000),
    "F16": _Infinities(np.int16, 0x7C00, np.uint16, 0xFC00),
    "BF16": _Infinities(np.int16, 0x7F80, np.uint16, 0xFF80),
    "F8_E5M2": _Infinities(np.int8, 0x7C, np.uint8, 0xFC),
    "F8_E4M3": _Infinities(np.int8, 0x7E, np.uint8, 0xFE),
}


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """One row of the text: a tensor of the table and its leaves."""

    spec: TensorSpec
    leaves: tuple[str, ...]


def content_text(tensors: Sequence[TensorDigest], adapter: Adapter | None = None) -> bytes:
    """The text whose sha256 is the content digest."""
    rows = sorted(tensors, key=lambda tensor: tensor.spec.name.encode())
    content = {
        "adapter": None if adapter is None else adapter.as_json(),
        "tensors": [[row.spec.name, row.spec.dtype, list(row.spec.shape), list(row.leaves)] for row in rows],
    }
    return first_line + json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")


def content_digest(tensors: Sequence[TensorDigest], adapter: Adapter | None = None) -> str:
    """The content digest, in hexadecimal."""
    return hashlib.sha256(content_text(tensors, adapter)).hexdigest()


def num_leaves(spec: TensorSpec) -> int:
    """How many leaves a tensor has."""
    return -(-spec.num_bytes // leaf_bytes)


def leaf_of(data: memoryview | bytes) -> str:
    """The leaf of up to 16 MiB of a tensor."""
    return hashlib.sha256(data).hexdigest()


class LeafHasher:
    """Hashes tensors on several threads; a context manager. One tensor at a time."""

    def __init__(self, num_threads: int | None = None) -> None:
        self._pool = threads("leaves", num_threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def begin(self, spec: TensorSpec, data: memoryview) -> Iterator[str]:
        """Begin to hash a tensor whose bytes stay as they are until all leaves were taken from the result.

        A NaN is an EngineError: no two of them are equal, and nothing can be generated with it.
        """
        pieces = [data[begin : begin + leaf_bytes] for begin in range(0, len(data), leaf_bytes)]
        starts = range(0, len(data), leaf_bytes)
        if len(data) < _worth_a_thread_bytes:
            return iter([_leaf_without_nan(spec, *pair) for pair in zip(pieces, starts, strict=True)])
        return self._pool.map(lambda piece, start: _leaf_without_nan(spec, piece, start), pieces, starts)


class DigestSink:
    """Takes the content digest of a version and keeps nothing of it; a context manager."""

    def __init__(self, num_threads: int | None = None) -> None:
        self._hasher = LeafHasher(num_threads)
        self._tensors: list[TensorDigest] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hasher.__exit__(kind, error, trace)

    def begin(self, table: Sequence[TensorSpec]) -> None:
        """Nothing depends on the table before its tensors come."""
        del table

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        """Hash one tensor."""
        self._tensors.append(TensorDigest(spec, tuple(self._hasher.begin(spec, data))))

    def digest(self, adapter: Adapter | None = None) -> str:
        """The content digest of all that was added."""
        return content_digest(self._tensors, adapter)


def digest_of_export(export: Export, adapter: Adapter | None = None) -> str:
    """The content digest of what is exported. Raises EngineError for a NaN."""
    with DigestSink() as sink:
        export(sink)
        return sink.digest(adapter)


def by_name(tensors: Sequence[TensorDigest]) -> Mapping[str, TensorDigest]:
    """The rows by the names of their tensors."""
    return {tensor.spec.name: tensor for tensor in tensors}


def refuse_nan(spec: TensorSpec, piece: memoryview, start: int) -> None:
    """Raise EngineError for a NaN in a piece of a tensor that begins at its byte `start`."""
    # In parts that stay in the processor's cache: each is read twice.
    for begin in range(0, len(piece), _part_bytes):
        part = piece[begin : begin + _part_bytes]
        if has_nan(spec.dtype, part):
            _refuse_nan_in(spec, part, start + begin)


def has_nan(dtype: str, values: memoryview) -> bool:
    """Whether one of these values, of a type of the table, is a NaN."""
    infinities = _infinities.get(dtype)
    if infinities is None or not len(values):
        return False
    signed, unsigned = _both(infinities, values)
    # Two maxima need no memory, and a third of the time of marking each element.
    return bool(signed.max() > infinities.positive or unsigned.max() > infinities.negative)


def _leaf_without_nan(spec: TensorSpec, piece: memoryview, start: int) -> str:
    refuse_nan(spec, piece, start)
    return leaf_of(piece)


def _refuse_nan_in(spec: TensorSpec, part: memoryview, start: int) -> None:
    infinities = _infinities[spec.dtype]
    signed, unsigned = _both(infinities, part)
    is_nan = (signed > infinities.positive) | (unsigned > infinities.negative)
    element = start // signed.itemsize + int(is_nan.argmax())
    raise EngineError(
        f"weights tensor {spec.name} has a NaN at element {element}: training went astray, and the version is not "
        "published; look at the losses and gradient norms of the last steps, and lower optimizer.learning_rate"
    )


def _both(
    infinities: _Infinities, values: memoryview
) -> tuple[NDArray[np.signedinteger[Any]], NDArray[np.unsignedinteger[Any]]]:
    """The bits as numbers with and without a sign."""
    return np.frombuffer(values, infinities.signed), np.frombuffer(values, infinities.unsigned)
