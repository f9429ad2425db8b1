"""The tensor table of a version, and how an engine hands its tensors over: one after another, never all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

type_bytes = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}
"""Bytes of an element by the name that safetensors has for its type, in the order that safetensors gives to types."""

_rank_of_type = {name: rank for rank, name in enumerate(type_bytes)}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One row of the table. `dtype` is a key of `type_bytes`."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * type_bytes[self.dtype]


class TensorSink(Protocol):
    """Takes the tensors of one version.

    `begin` gets the table, in the order of `file_order`; then each tensor comes once, in that order, as little-endian
    row-major bytes that are valid until `add` returns.
    """

    def begin(self, table: Sequence[TensorSpec]) -> None:
        """Take the table."""
        ...

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        """Take the next tensor."""
        ...


@runtime_checkable
class TensorMemory(TensorSink, Protocol):
    """A sink with memory of its own, for tensors that are not in host memory as they are handed over."""

    def memory_for(self, spec: TensorSpec) -> memoryview:
        """Where the next tensor may be written, with as many bytes as it has; `add` then gets this very view."""
        ...


Export = Callable[[TensorSink], None]
"""Hands all tensors of a version to a sink, such as `TrainingEngine.export_weights`."""


def file_order(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The order in which a safetensors file has its tensors: wide types first, then by the bytes of the name."""
    return sorted(specs, key=lambda spec: (-_rank_of_type[spec.dtype], spec.name.encode()))


def total_bytes(table: Sequence[TensorSpec]) -> int:
    """Bytes of all tensors."""
    return sum(spec.num_bytes for spec in table)
