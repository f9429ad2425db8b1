"""Taking the shards of a full form to a later version: patches are decoded into a file, then its values are written.

    decode_patches    reads shards and patches, writes the file; what is wrong with a patch shows here
    write_values      writes the file into the shards, and compares every tensor with what it should be

Between the two whoever calls this marks the shards as not to be used: they are in between two versions until
`write_values` returns, and for ever where it raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.atomic_write import partial_file
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.bit_patterns import bit_patterns
from rollog.kernel.versions.decoded_values import DecodedValues, ValuesWriter
from rollog.kernel.versions.identity import leaf_bytes, leaf_of
from rollog.kernel.versions.patches import decode
from rollog.kernel.versions.tensors import type_bytes
from rollog.kernel.versions.threads import threads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rollog.kernel.versions.identity import TensorDigest
    from rollog.kernel.versions.manifest import Manifest
    from rollog.kernel.versions.mapped_shards import MappedShards
    from rollog.kernel.versions.patch_manifest import PatchManifest, Piece
    from schemas.arrays import UInt8Array


def decode_patches(
    shards: MappedShards, manifest: Manifest, patches: Sequence[PatchManifest], target: Path
) -> None:
    """Write to `target` what `patches`, whose files are beside it, change in the shards of `manifest`.

    Needs at most 64 MiB a thread. Raises WeightsError, which names the tensor.
    """
    steps = [_Step.of(target.parent, patch) for patch in patches]
    with partial_file(target.parent) as partial:
        with partial.open("wb") as file, threads("patch") as pool:
            writer = ValuesWriter(file)
            jobs = [
                pool.submit(_decode_tensor, writer, number, data, [step.piece(name) for step in steps])
                for number, (name, data) in enumerate(shards.tensors(manifest))
            ]
            for job in jobs:
                job.result()
        partial.replace(target)


def write_values(shards: MappedShards, manifest: Manifest, values: Path) -> None:
    """Write decoded values into the shards that `manifest` names, and compare all tensors with it.

    Raises WeightsError, which names the tensor.
    """
    tensors = manifest.tensors
    decoded = DecodedValues(values, [type_bytes[tensor.spec.dtype] for tensor in tensors])
    with threads("patch") as pool:
        jobs = [
            pool.submit(_write_tensor, decoded, number, data, tensors[number])
            for number, (_, data) in enumerate(shards.tensors(manifest))
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


def _decode_tensor(
    writer: ValuesWriter, number: int, data: UInt8Array, pieces: Sequence[_StoredPiece]
) -> None:
    """Take one tensor through all patches."""
    spec = pieces[-1].piece.tensor.spec
    if not data.size:
        return
    elements = bit_patterns(data.data, type_bytes[spec.dtype])
    # Whatever came before a tensor that is stored whole counts no more.
    last_dense = max((at for at, each in enumerate(pieces) if each.piece.form == "dense"), default=-1)
    if last_dense >= 0:
        elements = bit_patterns(pieces[last_dense].data.data, elements.itemsize)
        writer.write_tensor(number, elements)
    blocks = [each.data.data for each in pieces[last_dense + 1 :] if each.piece.form == "changed"]
    if blocks:
        for changes in decode(blocks, elements, name=spec.name):
            writer.write_changes(number, changes, elements)


def _write_tensor(decoded: DecodedValues, number: int, data: UInt8Array, tensor: TensorDigest) -> None:
    if data.size:
        decoded.write_into(bit_patterns(data.data, type_bytes[tensor.spec.dtype]), number)
    for begin, expected in zip(range(0, data.size, leaf_bytes), tensor.leaves, strict=True):
        found = leaf_of(data[begin : begin + leaf_bytes].data)
        if found != expected:
            raise WeightsError(
                f"tensor {tensor.spec.name!r:.80} has after its patches a leaf {found[:16]} instead of "
                f"{expected[:16]}: a patch or what it was applied to was altered; both are made anew, from a full form"
            )
