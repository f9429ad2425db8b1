"""Shards of a copy in memory. A mapping stays from one version to the next: faults of its pages take as long as sha256.

Patches change shards in place, and only their names; so the mapping of a shard is good as long as its file is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.errors import WeightsError

if TYPE_CHECKING:
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
        """Give the memory of files back that are deleted."""
        self._mapped = {}

    def forget_deleted(self) -> None:
        """The same, of all but those that are in the directory, under whatever name."""
        if self._mapped:
            found = [path.stat() for path in self._directory.iterdir()]
            here = {(each.st_dev, each.st_ino) for each in found}
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
        file = (found.st_dev, found.st_ino)
        data = self._mapped.get(file)
        if data is None or data.size != found.st_size:
            data = np.memmap(path, dtype=np.uint8, mode="r+") if found.st_size else np.empty(0, np.uint8)
        return file, data
