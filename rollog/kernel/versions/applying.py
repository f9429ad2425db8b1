"""Patching the shards of a full form where they are, tensor by tensor on several threads, each result compared.

Who calls this has checked the files of the patches, and has marked the shards as not to be used: they are in between
two versions until this returns, and for ever where it raises.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.bit_patterns import bit_patterns
from rollog.kernel.versions.identity import leaf_bytes, leaf_of
from rollog.kernel.versions.patches import apply, decode
from rollog.kernel.versions.tensors import type_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rollog.kernel.versions.bit_patterns import BitPatterns
    from rollog.kernel.versions.identity import TensorDigest
    from rollog.kernel.versions.manifest import Manifest, Shard
    from rollog.kernel.versions.patch_manifest import PatchManifest, Piece
    from schemas.arrays import UInt8Array

_most_threads = 8


def apply_patches(directory: Path, manifest: Manifest, patches: Sequence[PatchManifest]) -> None:
    """Make the shards of `manifest` in `directory` into what the last of `patches` says; their files are there, too.

    Needs at most 64 MiB a thread. Raises WeightsError, which names the tensor.
    """
    steps = [_Step.of(directory, patch) for patch in patches]
    with ThreadPoolExecutor(min(_most_threads, os.cpu_count() or 1), thread_name_prefix="patch") as pool:
        for shard in manifest.shards:
            whole = np.memmap(directory / shard.name, dtype=np.uint8, mode="r+")
            jobs = [
                pool.submit(_patch_tensor, data, [step.piece(name) for step in steps])
                for name, data in _tensors(shard, whole).items()
            ]
            for job in jobs:
                job.result()


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


def _tensors(shard: Shard, whole: UInt8Array) -> dict[str, UInt8Array]:
    found, begin = {}, len(shard.header)
    for tensor in shard.tensors:
        end = begin + tensor.spec.num_bytes
        found[tensor.spec.name] = whole[begin:end]
        begin = end
    return found


def _patch_tensor(data: UInt8Array, pieces: Sequence[_StoredPiece]) -> None:
    """Take one tensor through all patches, and compare what comes out."""
    tensor = pieces[-1].piece.tensor
    if data.size:
        elements = bit_patterns(data.data, type_bytes[tensor.spec.dtype])
        _write(elements, pieces, tensor.spec.name)
    _compare(data, tensor)


def _write(elements: BitPatterns, pieces: Sequence[_StoredPiece], name: str) -> None:
    # Whatever came before a tensor that is stored whole counts no more.
    last_dense = max((number for number, each in enumerate(pieces) if each.piece.form == "dense"), default=-1)
    if last_dense >= 0:
        elements[:] = bit_patterns(pieces[last_dense].data.data, elements.itemsize)
    blocks = [each.data.data for each in pieces[last_dense + 1 :] if each.piece.form == "changed"]
    if blocks:
        # Changes of one segment depend on no other, and a tensor with a damaged block is not used again.
        for changes in decode(blocks, elements, name=name):
            apply(elements, changes.positions, changes.values)


def _compare(data: UInt8Array, tensor: TensorDigest) -> None:
    for begin, expected in zip(range(0, data.size, leaf_bytes), tensor.leaves, strict=True):
        found = leaf_of(data[begin : begin + leaf_bytes].data)
        if found != expected:
            raise WeightsError(
                f"tensor {tensor.spec.name!r:.80} has after its patches a leaf {found[:16]} instead of "
                f"{expected[:16]}: a patch or what it was applied to was altered; both are made anew, from a full form"
            )
