"""An engine's state for a checkpoint: copied into host memory, and written from there beside training.

The training thread copies it before the next optimizer step and goes on; another thread writes the copy. The memory is
taken for the first copy and used again for every later one. Where it would be too much for this machine, the state is
written at once instead, from where it is.
"""

from __future__ import annotations

import copy
from typing import IO, TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from rollog.kernel.logs import get_logger
from rollog.kernel.machine import free_memory_bytes
from trainer.checkpoint_files import hashed_file
from trainer.right_of_way import RightOfWay

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainer.checkpoint_files import Digests

log = get_logger("trainer")

_most_of_free_memory = 0.5
"""The rest is for what else the machine does, and for files on their way to the disk."""


class StateMemory:
    """Host memory for copies of one engine's state, of one checkpoint at a time.

    `num_ranks` may be copying into the memory of this machine at the same time.
    """

    def __init__(
        self, *, num_ranks: int = 1, free_bytes: Callable[[], int | None] = free_memory_bytes
    ) -> None:
        self._num_ranks = num_ranks
        self._free_bytes = free_bytes
        self._held: dict[str, list[Tensor]] = {}

    def copy(self, name: str, state: Any) -> Any | None:
        """The state with all tensors in host memory, where the copy before of this name was; None without room.

        Containers are new ones; tensors that are one stay one. A state is built of dictionaries, lists and tuples.
        """
        copying = _Copying(self._held.get(name, []))
        copied = copying.of(state)
        if not self._has_room(name, copying.num_new_bytes):
            return None
        self._held[name] = copying.buffers
        copying.fill()
        return copied

    def _has_room(self, name: str, num_bytes: int) -> bool:
        free = self._free_bytes() if num_bytes else None
        if free is None or num_bytes * self._num_ranks <= free * _most_of_free_memory:
            return True
        log.info(
            "memory is short: the checkpoint is written before the next step",
            file=name,
            bytes_for_a_copy=num_bytes,
            num_ranks=self._num_ranks,
            free_bytes=free,
        )
        return False


class CheckpointPart:
    """The files that one rank writes of one checkpoint, below its `directory`: at once without a memory for copies.

    Copies have the right of `way`, and are written while nobody has it.
    """

    def __init__(
        self, directory: Path, memory: StateMemory | None = None, way: RightOfWay | None = None
    ) -> None:
        self.directory = directory
        self._memory = memory
        self._way = way or RightOfWay()
        self._copied: list[tuple[str, Any]] = []
        self._digests: dict[str, str] = {}

    def add(self, name: str, state: Any) -> None:
        """Copy what the file of that name is to hold, or write it. Raises OSError."""
        with self._way.copying():
            copied = None if self._memory is None else self._memory.copy(name, state)
        if copied is None:
            self._digests[name] = self._saved(state, name)
        else:
            self._copied.append((name, copied))

    def write(self) -> Digests:
        """Write what is copied, on any thread, once; returns the digests of all files. Raises OSError."""
        for name, state in self._copied:
            self._digests[name] = self._saved(state, name)
        return self._digests

    def _saved(self, state: Any, name: str) -> str:
        """Write a state as PyTorch does; returns the sha256 of the file."""
        # It takes thrice the time, and the sha256 says more.
        torch.serialization.set_crc32_options(compute_crc32=False)
        with hashed_file(self.directory / name, self._way.give) as file:
            torch.save(state, cast("IO[bytes]", file))
        return file.sha256


class _Copying:
    """One copy of a state: first its form, with tensors to come, then their elements."""

    def __init__(self, held: list[Tensor]) -> None:
        self.buffers: list[Tensor] = []
        self.num_new_bytes = 0
        self._held = held
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._known: dict[tuple[object, ...], Tensor] = {}

    def of(self, value: Any) -> Any:
        match value:
            case Tensor():
                return self._tensor(value.detach())
            case dict():
                copied = copy.copy(value)  # a state dictionary of a module has attributes
                copied.update({key: self.of(item) for key, item in value.items()})
                return copied
            case list():
                return [self.of(item) for item in value]
            case tuple() if type(value) is tuple:  # shapes are tuples of another kind
                return tuple(self.of(item) for item in value)
            case _:
                return copy.deepcopy(value)

    def fill(self) -> None:
        for buffer, tensor in self._pairs:
            buffer.copy_(tensor)

    def _tensor(self, tensor: Tensor) -> Tensor:
        # Weights in float32 are what the optimizer moves: they are in a state twice.
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        known = self._known.get(key) if tensor.numel() else None
        if known is None:
            known = self._known[key] = self._buffer(tensor)
            self._pairs.append((known, tensor))
        return known

    def _buffer(self, tensor: Tensor) -> Tensor:
        held = self._held[len(self.buffers)] if len(self.buffers) < len(self._held) else None
        form = (tensor.dtype, tensor.shape)
        if held is None or (held.dtype, held.shape) != form:
            held = torch.empty_like(tensor, device="cpu")
            self.num_new_bytes += held.nbytes
        self.buffers.append(held)
        return held
