"""Writing a version as shards: tensor after tensor, in plain safetensors files of bounded size.

What is held in memory is the tensor at hand, and what `VersionFiles` holds: nothing on a disk, two shards on their way
to a store elsewhere. A tensor is in one shard, so one that is larger than a shard should be makes a shard of its own.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, Self

from rollog.kernel.versions.identity import LeafHasher, TensorDigest
from rollog.kernel.versions.manifest import Manifest, Shard, shard_name_of
from rollog.kernel.versions.safetensors import file_header
from rollog.kernel.versions.tensors import file_order

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rollog.kernel.versions.adapter import Adapter
    from rollog.kernel.versions.tensors import TensorSpec

shard_bytes = 1 << 30
"""Bytes of tensors in a shard, at most, but for a larger tensor."""


class VersionFiles(Protocol):
    """Where the files of a version go. All names are new. Raises WeightsError."""

    def begin(self, name: str) -> None:
        """Begin a shard."""
        ...

    def write(self, data: memoryview) -> None:
        """Bytes of the shard that was begun last."""
        ...

    def end(self) -> None:
        """The shard is whole. It may become durable later."""
        ...

    def publish(self, name: str, manifest: bytes) -> None:
        """Return when all shards are durable, and then the manifest under its name."""
        ...

    def abandon(self) -> None:
        """Remove what was written, as far as that is possible."""
        ...


def shard_layout(table: Sequence[TensorSpec], most_bytes: int = shard_bytes) -> list[list[TensorSpec]]:
    """Which tensors are in which shard, each in `file_order`; a version without tensors has one empty shard."""
    layout: list[list[TensorSpec]] = [[]]
    room = most_bytes
    for spec in file_order(table):
        if spec.num_bytes > room and layout[-1]:
            layout.append([])
            room = most_bytes
        layout[-1].append(spec)
        room -= spec.num_bytes
    return layout


class ShardedSink:
    """Writes shards and, when all tensors have come, the manifest; a context manager that leaves nothing half done."""

    def __init__(
        self,
        files: VersionFiles,
        manifest_name: str,
        *,
        adapter: Adapter | None = None,
        most_bytes: int = shard_bytes,
        num_threads: int | None = None,
    ) -> None:
        self._files = files
        self._adapter = adapter
        self._name = manifest_name
        self._most_bytes = most_bytes
        self._hasher = LeafHasher(num_threads)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shard-digest")
        self._layout: list[list[TensorSpec]] = []
        self._shards: list[Shard] = []
        self._held: list[TensorDigest] = []
        self._num_bytes = 0
        self._digest = hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()
        self._hasher.__exit__(kind, error, trace)
        if error is not None:
            self._files.abandon()

    def begin(self, table: Sequence[TensorSpec]) -> None:
        """Lay the tensors out."""
        self._layout = shard_layout(table, self._most_bytes)
        self._begin_shard()

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        """Write one tensor; its digests are taken meanwhile."""
        while len(self._held) == len(self._layout[len(self._shards)]):
            self._end_shard()
            self._begin_shard()
        leaves = self._hasher.begin(spec, data)
        digested = self._thread.submit(self._digest.update, data)
        self._files.write(data)
        self._num_bytes += len(data)
        self._held.append(TensorDigest(spec, tuple(leaves)))
        digested.result()

    def finish(self) -> tuple[Manifest, bytes]:
        """Publish the manifest; returns it and its text. When this returns, the version is durable."""
        self._end_shard()
        manifest = Manifest(tuple(self._shards), self._adapter)
        text = manifest.encoded()
        self._files.publish(self._name, text)
        return manifest, text

    def _begin_shard(self) -> None:
        number = len(self._shards)
        header = file_header(self._layout[number])
        self._digest = hashlib.sha256(header)
        self._num_bytes = len(header)
        self._held = []
        self._files.begin(shard_name_of(self._name, number))
        self._files.write(memoryview(header))

    def _end_shard(self) -> None:
        self._files.end()
        self._shards.append(
            Shard(
                name=shard_name_of(self._name, len(self._shards)),
                num_bytes=self._num_bytes,
                sha256=self._digest.hexdigest(),
                tensors=tuple(self._held),
            )
        )
