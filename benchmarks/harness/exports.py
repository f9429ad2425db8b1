"""What an engine exports, whole in memory: benchmarks hold several versions of a small model at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.versions.single_file import SingleFileSink

if TYPE_CHECKING:
    from rollog.kernel.versions.tensors import Export


def file_of(export: Export) -> bytes:
    """The safetensors file of all that is exported."""
    file = bytearray()
    export(SingleFileSink(file.extend))
    return bytes(file)
