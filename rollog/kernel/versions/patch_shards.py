"""Writing a version as what changed since its base: block after block, in files of bounded size.

What is held in memory is the tensor at hand with its block, and what `VersionFiles` holds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from rollog.kernel.versions.identity import LeafHasher, TensorDigest
from rollog.kernel.versions.manifest import shard_name_of
from rollog.kernel.versions.patch_manifest import (
    PatchBase,
    PatchManifest,
    PatchShard,
    Piece,
    patch_suffix,
)
from rollog.kernel.versions.shards import shard_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rollog.kernel.versions.adapter import Adapter
    from rollog.kernel.versions.patches import TensorPatch
    from rollog.kernel.versions.shards import VersionFiles
    from rollog.kernel.versions.tensors import TensorSpec


Form = Literal["same", "changed", "dense"]


@dataclass(slots=True)
class _OpenShard:
    """The shard that is being written."""

    name: str
    num_bytes: int = 0


class PatchSink:
    """Writes blocks and, when all tensors have come, the manifest; a context manager that leaves nothing half done.

    Tensors come in `file_order`, as from an engine.
    """

    def __init__(
        self,
        files: VersionFiles,
        manifest_name: str,
        base: PatchBase,
        *,
        adapter: Adapter | None = None,
        most_bytes: int = shard_bytes,
        num_threads: int | None = None,
    ) -> None:
        self._files = files
        self._adapter = adapter
        self._name = manifest_name
        self._base = base
        self._most_bytes = most_bytes
        self._hasher = LeafHasher(num_threads)
        self._pieces: list[Piece] = []
        self._shards: list[PatchShard] = []
        self._open: _OpenShard | None = None
        self._digest = hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hasher.__exit__(kind, error, trace)
        if error is not None:
            self._files.abandon()

    def add(self, spec: TensorSpec, data: memoryview, patch: Callable[[], TensorPatch]) -> TensorDigest:
        """Write one tensor, whose bytes are `data`, as its patch says, which is made while they are hashed.

        Raises EngineError for a NaN, and what `patch` raises.
        """
        leaves = self._hasher.begin(spec, data)
        made = patch()
        tensor = TensorDigest(spec, tuple(leaves))
        self.add_hashed(tensor, data, made)
        return tensor

    def add_hashed(self, tensor: TensorDigest, data: memoryview, patch: TensorPatch) -> None:
        """Write one tensor whose digest is known already."""
        # A tensor without elements is the same whatever the patch says.
        stored = {"same": memoryview(b""), "changed": memoryview(patch.block), "dense": data}[patch.form]
        self._add(patch.form, stored, tensor)

    def add_beside(self, spec: TensorSpec, data: memoryview, base: TensorDigest | None) -> None:
        """Write one tensor whole, unless it is as in the base by its digest. Raises EngineError for a NaN."""
        tensor = TensorDigest(spec, tuple(self._hasher.begin(spec, data)))
        self._add("dense", memoryview(b"") if tensor == base else data, tensor)

    def _add(self, form: Form, stored: memoryview, tensor: TensorDigest) -> None:
        if not stored:
            self._pieces.append(Piece(tensor=tensor, form="same"))
            return
        shard = self._shard_for(len(stored))
        begin = shard.num_bytes
        self._files.write(stored)
        self._digest.update(stored)
        shard.num_bytes += len(stored)
        self._pieces.append(
            Piece(
                tensor=tensor,
                form=form,
                shard=len(self._shards),
                begin=begin,
                end=shard.num_bytes,
            )
        )

    @property
    def stored_bytes(self) -> int:
        """Bytes of blocks and tensors so far."""
        return sum(shard.num_bytes for shard in self._shards) + (self._open.num_bytes if self._open else 0)

    def finish(self) -> tuple[PatchManifest, bytes]:
        """Publish the manifest; returns it and its text. When this returns, the patch is durable."""
        self._end_shard()
        manifest = PatchManifest(self._base, tuple(self._shards), tuple(self._pieces), self._adapter)
        text = manifest.encoded()
        self._files.publish(self._name, text)
        return manifest, text

    def _shard_for(self, num_bytes: int) -> _OpenShard:
        """The shard with room for so many bytes; one that is larger than a shard should be gets its own."""
        if self._open is not None and self._open.num_bytes + num_bytes > self._most_bytes:
            self._end_shard()
        if self._open is None:
            self._open = _OpenShard(shard_name_of(self._name, len(self._shards), patch_suffix))
            self._digest = hashlib.sha256()
            self._files.begin(self._open.name)
        return self._open

    def _end_shard(self) -> None:
        if self._open is None:
            return
        self._files.end()
        self._shards.append(
            PatchShard(name=self._open.name, num_bytes=self._open.num_bytes, sha256=self._digest.hexdigest())
        )
        self._open = None
