"""The tensors of one version after another, read where the files of a copy in shared memory are.

The copy of a machine is patched in place. Its files stay mapped here from one version to the next, because the system
sets up a new mapping page by page, while the engine is paused. Files elsewhere are not kept: those of a store are never
written again, and on a network's file system a name that was removed may come back as another file.

What stays mapped is read-only. A model that writes into the tensors it is given, as vLLM's GPT-OSS does with tensor
parallelism, would end by SIGSEGV there. So the first version is read in private pages, which tell whether the model
wrote to them; for one that does, private pages are made for every version, and none is kept.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from functools import partial
from mmap import ACCESS_COPY, ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from producers.engines.changed_tensors import read_tensors
from rollog.kernel.errors import WeightsError
from rollog.kernel.logs import get_logger
from rollog.kernel.shared_memory import is_in_shared_memory
from rollog.kernel.versions.files import files_of
from rollog.kernel.versions.torch_types import torch_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from producers.engines.changed_tensors import ReadTensors
    from rollog.kernel.versions.manifest import Manifest, Shard
    from rollog.kernel.versions.tensors import TensorSpec

    FileId = tuple[int, int]

_log = get_logger("weights")
_memory_maps = Path("/proc/self/smaps")


class MappedTensors:
    """For one engine, which reads one version at a time, on one thread.

    A file that is deleted while it is mapped keeps its memory until the next version is read. `memory_maps` is what the
    system says of this process's memory.
    """

    def __init__(self, *, memory_maps: Path = _memory_maps) -> None:
        self._memory_maps = memory_maps
        self._kept: dict[FileId, mmap] = {}
        self._may_keep: bool | None = None
        """None as long as nobody knows."""

    @contextmanager
    def opened(self, path: Path, manifest: Manifest | None) -> Iterator[ReadTensors]:
        """Gives tensors of the version at `path` by their names, within the block. Raises WeightsError, OSError.

        It has this manifest, or is a single file.
        """
        files = files_of(path, manifest)
        if manifest is None or not all(is_in_shared_memory(file.stat()) for file in files):
            self._kept = {}
            yield partial(read_tensors, files)
            return
        mapped: dict[FileId, mmap] = {}
        tensors: dict[str, torch.Tensor] = {}
        for file, shard in zip(files, manifest.shards, strict=True):
            file_id, data = self._mapped(file, shard)
            mapped[file_id] = data
            tensors |= _tensors_in(data, shard)
        self._kept = {}
        yield lambda names: ((name, tensor) for name, tensor in tensors.items() if name in names)
        if self._may_keep is None:
            self._may_keep = _is_unwritten(mapped.values(), self._memory_maps)
            _log.debug("files of the copy of the weights can stay mapped", is_so=self._may_keep)
        elif self._may_keep:
            self._kept = mapped

    def _mapped(self, path: Path, shard: Shard) -> tuple[FileId, mmap]:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_size != shard.num_bytes:
                raise WeightsError(
                    f"{path} has {found.st_size} bytes instead of {shard.num_bytes}; its worker fetches it again"
                )
            file_id = found.st_dev, found.st_ino  # of a file in shared memory, as long as it is mapped
            data = self._kept.get(file_id)
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


def _is_unwritten(mappings: Iterable[mmap], memory_maps: Path) -> bool | None:
    """Whether all pages of private mappings are still those of their files; None where some are swapped out.

    Where the system does not tell, it is said to be False.
    """
    addresses = {torch.frombuffer(data, dtype=torch.uint8).data_ptr() for data in mappings}
    anonymous, swapped, found = 0, 0, set()
    is_ours = False
    try:
        with memory_maps.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, rest = line.partition(" ")
                if not name.endswith(":"):  # proc(5): each mapping begins with its addresses
                    begin = int(name.partition("-")[0], 16)
                    is_ours = begin in addresses
                    found.add(begin)
                elif is_ours and name == "Anonymous:":
                    anonymous += int(rest.split()[0])
                elif is_ours and name == "Swap:":
                    swapped += int(rest.split()[0])
    except OSError:
        return False
    if anonymous or not addresses <= found:
        return False
    return None if swapped else True
