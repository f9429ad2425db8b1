"""One safetensors file of a whole version: what runs publish that began before there were manifests.

Their digest is the sha256 of that file. It is written while tensors are gathered, and has the bytes that
`safetensors.torch.save` makes of all of them at once.
"""

from __future__ import annotations

import hashlib
from typing import IO, TYPE_CHECKING, Any

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.safetensors import file_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rollog.kernel.versions.tensors import Export, TensorSpec
    from schemas.weights import WeightVersion

_piece_bytes = 16 << 20
_chunk_bytes = 4 << 20


class SingleFileSink:
    """Passes the bytes of the file on, piece by piece, and knows sha256 and length of what it passed."""

    def __init__(self, write: Callable[[memoryview], Any] | None = None) -> None:
        self._write = write
        self._digest = hashlib.sha256()
        self.num_bytes = 0

    def begin(self, table: Sequence[TensorSpec]) -> None:
        """Write the header."""
        self._pass_on(memoryview(file_header(table)))

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        """Write one tensor."""
        del spec
        for begin in range(0, len(data), _piece_bytes):
            self._pass_on(data[begin : begin + _piece_bytes])

    @property
    def sha256(self) -> str:
        """Of the file so far."""
        return self._digest.hexdigest()

    def _pass_on(self, data: memoryview) -> None:
        self._digest.update(data)
        self.num_bytes += len(data)
        if self._write is not None:
            self._write(data)


def file_digest_of_export(export: Export) -> str:
    """The sha256 of the file that an export would be written to."""
    sink = SingleFileSink()
    export(sink)
    return sink.sha256


def digest_of_file(path: Path) -> tuple[str, int]:
    """The sha256 and length of a file."""
    with path.open("rb") as source:
        return digest_of_stream(source)


def digest_of_stream(source: IO[bytes]) -> tuple[str, int]:
    """The sha256 and length of what is left of a stream."""
    digest, num_bytes = hashlib.sha256(), 0
    while chunk := source.read(_chunk_bytes):
        digest.update(chunk)
        num_bytes += len(chunk)
    return digest.hexdigest(), num_bytes


def copy_noticed(source: IO[bytes], target: IO[bytes] | None, notice: WeightVersion) -> None:
    """Read `source`, into `target` if there is one, no further than it is as noticed; raises WeightsError otherwise."""
    digest, num_bytes = hashlib.sha256(), 0
    while num_bytes <= notice.num_bytes and (chunk := source.read(_chunk_bytes)):
        digest.update(chunk)
        num_bytes += len(chunk)
        if target is not None:
            target.write(chunk)
    if num_bytes != notice.num_bytes:
        at_least = "at least " if num_bytes > notice.num_bytes else ""
        raise WeightsError(
            f"weights {notice.name} have {at_least}{num_bytes} bytes instead of {notice.num_bytes}; the file was cut "
            "or overwritten and is not used"
        )
    if digest.hexdigest() != notice.sha256:
        raise WeightsError(
            f"weights {notice.name} have sha256 {digest.hexdigest()} instead of {notice.sha256}; the file "
            "was altered and is not used"
        )
