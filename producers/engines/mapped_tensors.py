"""The tensors of one version after another, in the memory of the files that have them.

A worker's copy of the weights is patched in place, most often in shared memory. Its files stay mapped here from one
version to the next: the pages of a new mapping are found one by one, while the engine stands still.

What stays mapped is read-only. A model that writes into the tensors it is given, as vLLM's GPT-OSS does on several
devices, would end the process there. Whether a model does shows in the first version, which it gets in pages that are
copied when they are written to; one that does gets such pages for every version.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from functools import partial
from mmap import ACCESS_COPY, ACCESS_READ, mmap
from os import fstat
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from producers.engines.changed_tensors import read_tensors
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.torch_types import torch_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from producers.engines.changed_tensors import ReadTensors
    from rollog.kernel.versions.manifest import Manifest, Shard
    from rollog.kernel.versions.tensors import TensorSpec

    FileId = tuple[int, int]

_memory_maps = Path("/proc/self/smaps")
_own_pages = {"Anonymous:", "Swap:"}


class MappedTensors:
    """For one engine, which reads one version at a time, on one thread.

    The files of the version that was read last take memory until the next one is read, even where they are deleted.
    """

    def __init__(self) -> None:
        self._kept: dict[FileId, mmap] = {}
        self._may_keep: bool | None = None
        """None before the first version."""

    @contextmanager
    def opened(self, path: Path, manifest: Manifest | None) -> Iterator[ReadTensors]:
        """Gives tensors of the version at `path` by their names, within the block. Raises WeightsError, OSError.

        It has this manifest, or is a single file, of which nothing stays mapped.
        """
        if manifest is None:
            yield partial(read_tensors, path)
            return
        kept, self._kept = self._kept, {}
        files: dict[FileId, mmap] = {}
        tensors: dict[str, torch.Tensor] = {}
        for shard in manifest.shards:
            file, data = self._mapped(path.with_name(shard.name), shard, kept)
            files[file] = data
            tensors |= _tensors_in(data, shard)
        yield lambda names: ((name, tensor) for name, tensor in tensors.items() if name in names)
        if self._may_keep:
            self._kept = files
        elif self._may_keep is None:
            self._may_keep = not any(_was_written_to(data) for data in files.values())

    def _mapped(self, path: Path, shard: Shard, kept: Mapping[FileId, mmap]) -> tuple[FileId, mmap]:
        with path.open("rb") as file:
            found = fstat(file.fileno())
            if found.st_size != shard.num_bytes:
                raise WeightsError(
                    f"{path} has {found.st_size} bytes instead of {shard.num_bytes}; the version is not loaded, and "
                    "has to be fetched again"
                )
            file_id = found.st_dev, found.st_ino
            data = kept.get(file_id)
            if data is None:
                access = ACCESS_READ if self._may_keep else ACCESS_COPY
                data = mmap(file.fileno(), found.st_size, access=access)
        return file_id, data


def _tensors_in(data: mmap, shard: Shard) -> dict[str, torch.Tensor]:
    found, begin = {}, len(shard.header)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        for digest in shard.tensors:
            found[digest.spec.name] = _tensor(data, digest.spec, begin)
            begin += digest.spec.num_bytes
    return found


def _tensor(data: mmap, spec: TensorSpec, begin: int) -> torch.Tensor:
    dtype = torch_types[spec.dtype]
    if not spec.num_bytes:
        return torch.empty(spec.shape, dtype=dtype)
    num_elements = spec.num_bytes // dtype.itemsize
    return torch.frombuffer(data, dtype=dtype, count=num_elements, offset=begin).view(spec.shape)


def _was_written_to(data: mmap) -> bool:
    """Whether pages of a mapping may no longer be those of the file; True where the system does not tell."""
    address = torch.frombuffer(data, dtype=torch.uint8).data_ptr()
    try:
        with _memory_maps.open(encoding="utf-8", errors="replace") as maps:
            own = _own_kib(maps, address)
    except OSError:
        return True
    return own.keys() != _own_pages or any(own.values())


def _own_kib(maps: Iterable[str], address: int) -> dict[str, int]:
    """KiB of pages that are not, or may not be, those of a file, in the mapping at an address (proc(5), smaps)."""
    found, is_there = {}, False
    for line in maps:
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            begin, _, end = name.partition("-")
            is_there = int(begin, 16) <= address < int(end, 16)
        elif is_there and name in _own_pages:
            found[name] = int(rest.split()[0])
    return found
