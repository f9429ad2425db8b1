"""Shards of a copy in memory. A mapping stays from one version to the next: faults of its pages take as long as sha256.

Patches and full forms change shards in place, and rename them: a mapping is good as long as its file is there.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.errors import WeightsError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.versions.manifest import Manifest, Shard
    from schemas.arrays import UInt8Array


class ShardCut(WeightsError):
    """A shard of the copy has another size than its manifest says."""


class MappedShards:
    """The shards of a copy in `directory`, which nobody but its holder cuts. For one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mapped: dict[tuple[int, int], UInt8Array] = {}

    def tensors(self, manifest: Manifest) -> Iterator[tuple[str, UInt8Array]]:
        """Names and bytes of all tensors, in the order of the manifest. Raises ShardCut.

        What is written to the bytes is in the file.
        """
        kept: dict[tuple[int, int], UInt8Array] = {}
        for shard in manifest.shards:
            file, data = self._data(shard)
            kept[file] = data
            begin = len(shard.header)
            for tensor in shard.tensors:
                end = begin + tensor.spec.num_bytes
                yield tensor.spec.name, data[begin:end]
                begin = end
        self._mapped = kept

    def forget(self) -> None:
        """Give the memory of all back, as far as their files are deleted."""
        self._mapped = {}

    def forget_deleted(self) -> None:
        """The same, of all but those that are in the directory, under whatever name."""
        if self._mapped:
            here: set[tuple[int, int]] = set()
            for path in self._directory.glob("*"):
                with suppress(FileNotFoundError):  # another one may be at work here
                    here.add(_file_of(path.stat()))
            self._mapped = {file: data for file, data in self._mapped.items() if file in here}

    def bytes_of(self, path: Path) -> UInt8Array:
        """The bytes of a file of the directory, as long as it is there, under whatever name."""
        file, data = self._file(path)
        self._mapped[file] = data
        return data

    def _data(self, shard: Shard) -> tuple[tuple[int, int], UInt8Array]:
        file, data = self._file(self._directory / shard.name)
        if data.size != shard.num_bytes:
            raise ShardCut(
                f"{shard.name} has {data.size} bytes instead of {shard.num_bytes}; it is fetched anew"
            )
        return file, data

    def _file(self, path: Path) -> tuple[tuple[int, int], UInt8Array]:
        found = path.stat()
        file = _file_of(found)
        data = self._mapped.get(file)
        if data is None or data.size != found.st_size:
            data = np.memmap(path, dtype=np.uint8, mode="r+") if found.st_size else np.empty(0, np.uint8)
        return file, data


def _file_of(found: os.stat_result) -> tuple[int, int]:
    """What a file is, whatever its name."""
    return found.st_dev, found.st_ino
