"""Taking the shards of a full form to a later version, in place: leaf by leaf decoded, written and compared.

One thread decodes, writes and hashes a leaf, while its segments are in the processor's cache. Doing each with all of
the model before the next takes a third longer, and needs memory for what was decoded.

Between the first leaf and the last the shards are of no version, and for ever where a leaf is not what it should be:
differences cannot be added twice, so nobody can go on from there. Whoever calls this marks the shards before, and makes
them anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.errors import WeightsError
from rollog.kernel.printable import printable
from rollog.kernel.versions.bit_patterns import bit_patterns
from rollog.kernel.versions.blocks import Layout, segment_elements
from rollog.kernel.versions.identity import leaf_bytes, leaf_of
from rollog.kernel.versions.patches import CodedChanges, apply
from rollog.kernel.versions.threads import threads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rollog.kernel.versions.identity import TensorDigest
    from rollog.kernel.versions.manifest import Manifest
    from rollog.kernel.versions.mapped_shards import MappedShards
    from rollog.kernel.versions.patch_manifest import PatchManifest, Piece
    from schemas.arrays import UInt8Array


class PatchedShards:
    """The shards of `manifest` and the patches, oldest first, that take them to a later version.

    `directory` has the files of the patches. Making it reads sizes and headers of all blocks, and writes nothing.
    Raises WeightsError where a patch does not fit, and ShardCut for a shard of another size.
    """

    def __init__(
        self, shards: MappedShards, manifest: Manifest, patches: Sequence[PatchManifest], directory: Path
    ) -> None:
        table = {tensor.spec for tensor in manifest.tensors}
        for patch in patches:
            if {tensor.spec for tensor in patch.tensors} != table:
                raise WeightsError(
                    f"the patch of {patch.base.pair} has other tensors than that version; it is not used: load "
                    "another version, or have the trainer publish this one again"
                )
        steps = [_Step.of(directory, patch) for patch in patches]
        self._tensors = [
            _tensor(data, [step.piece(name) for step in steps]) for name, data in shards.tensors(manifest)
        ]

    def write(self) -> None:
        """Write all leaves, and compare each with what it should be; once.

        Needs at most 64 MiB a thread. Raises WeightsError, which names the tensor; the shards are of no version then.
        """
        with threads("patch") as pool:
            try:
                jobs = deque(
                    pool.submit(tensor.write_leaf, begin)
                    for tensor in self._tensors
                    for begin in range(0, tensor.data.size, leaf_bytes)
                )
                while jobs:
                    jobs.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _StoredPiece:
    piece: Piece
    data: UInt8Array


@dataclass(frozen=True, slots=True)
class _Step:
    """One patch: its pieces by the names of their tensors, and its shards."""

    pieces: Mapping[str, Piece]
    shards: Sequence[UInt8Array]

    @classmethod
    def of(cls, directory: Path, patch: PatchManifest) -> _Step:
        return cls(
            {piece.tensor.spec.name: piece for piece in patch.pieces},
            [np.memmap(directory / shard.name, dtype=np.uint8, mode="r") for shard in patch.shards],
        )

    def piece(self, name: str) -> _StoredPiece:
        piece = self.pieces[name]
        if piece.form == "same":
            return _StoredPiece(piece, np.empty(0, dtype=np.uint8))
        return _StoredPiece(piece, self.shards[piece.shard][piece.begin : piece.end])


@dataclass(frozen=True, slots=True, kw_only=True)
class _PatchedTensor:
    """The bytes of a tensor, those it begins with where a patch has them, what is added, and what it becomes."""

    data: UInt8Array
    dense: UInt8Array | None
    coded: CodedChanges
    layout: Layout
    digest: TensorDigest

    def write_leaf(self, begin: int) -> None:
        """The leaf that begins at this byte, with all segments in it: no other thread has one of them."""
        leaf = slice(begin, begin + leaf_bytes)
        if self.dense is not None:
            self.data[leaf] = self.dense[leaf]
        elements = bit_patterns(self.data.data, self.layout.item_size)
        for changes in self.coded.decoded(self._segments(begin)):
            reach(CrashPoint.PATCHES_DECODED)
            apply(changes, elements)
            del changes  # before the next ones take memory
            reach(CrashPoint.COPY_BETWEEN_VERSIONS)
        found, expected = leaf_of(self.data[leaf].data), self.digest.leaves[begin // leaf_bytes]
        if found != expected:
            raise WeightsError(
                f"tensor {printable(self.digest.spec.name, limit=80)!r} has after its patches a leaf {found[:16]} "
                f"instead of {expected[:16]}: a patch or what it was applied to was altered; both are made anew, from "
                "a full form"
            )

    def _segments(self, begin: int) -> range:
        """Their numbers, of the leaf that begins there."""
        bytes_of_one = segment_elements * self.layout.item_size
        end = min(begin + leaf_bytes, self.data.size)
        return range(begin // bytes_of_one, -(-end // bytes_of_one))


def _tensor(data: UInt8Array, pieces: Sequence[_StoredPiece]) -> _PatchedTensor:
    """One tensor on its way through all patches."""
    digest = pieces[-1].piece.tensor
    layout = Layout.of(digest.spec)
    # Whatever came before a tensor that is stored whole counts no more.
    last_dense = max((at for at, each in enumerate(pieces) if each.piece.form == "dense"), default=-1)
    blocks = [each.data.data for each in pieces[last_dense + 1 :] if each.piece.form == "changed"]
    return _PatchedTensor(
        data=data,
        dense=pieces[last_dense].data if last_dense >= 0 else None,
        coded=CodedChanges(blocks, layout, name=digest.spec.name),
        layout=layout,
        digest=digest,
    )
