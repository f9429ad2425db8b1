"""Taking the shards of a full form to a later version: patches are decoded into a file, then its values are written.

    decode_patches    reads shards and patches, writes the file; what is wrong with a patch shows here
    write_values      writes the file into the shards, and compares every tensor with what it should be

Between the two whoever calls this marks the shards as not to be used: they are in between two versions until
`write_values` returns, and for ever where it raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.atomic_write import partial_file
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.bit_patterns import bit_patterns
from rollog.kernel.versions.blocks import Layout
from rollog.kernel.versions.decoded_values import DecodedValues, ValuesWriter
from rollog.kernel.versions.identity import leaf_bytes, leaf_of
from rollog.kernel.versions.patches import CodedChanges
from rollog.kernel.versions.tensors import type_bytes
from rollog.kernel.versions.threads import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rollog.kernel.versions.identity import TensorDigest
    from rollog.kernel.versions.manifest import Manifest
    from rollog.kernel.versions.mapped_shards import MappedShards
    from rollog.kernel.versions.patch_manifest import PatchManifest, Piece
    from schemas.arrays import UInt8Array

_segments_a_part = 16
"""Of a tensor, for one thread: a model has one very large tensor, with which one thread would go on alone."""


def decode_patches(
    shards: MappedShards, manifest: Manifest, patches: Sequence[PatchManifest], target: Path
) -> None:
    """Write to `target` what `patches`, whose files are beside it, change in the shards of `manifest`.

    Needs at most 64 MiB a thread, and the tables of all patches. Raises WeightsError, which names the tensor.
    """
    steps = [_Step.of(target.parent, patch) for patch in patches]
    with partial_file(target.parent) as unfinished:
        with unfinished.open("wb") as file:
            writer = ValuesWriter(file)
            _do_all(
                part
                for number, (name, data) in enumerate(shards.tensors(manifest))
                for part in _parts_to_decode(writer, number, data, [step.piece(name) for step in steps])
            )
        unfinished.replace(target)


def write_values(shards: MappedShards, manifest: Manifest, values: Path) -> None:
    """Write decoded values into the shards that `manifest` names, and compare all tensors with it.

    Raises WeightsError, which names the tensor.
    """
    tensors = manifest.tensors
    decoded = DecodedValues(values, [Layout.of(tensor.spec) for tensor in tensors])
    _do_all(
        partial(_write_leaf, decoded, number, data, begin, tensors[number])
        for number, (_, data) in enumerate(shards.tensors(manifest))
        for begin in range(0, data.size, leaf_bytes)
    )


def _do_all(parts: Iterable[Callable[[], None]]) -> None:
    """Do all on several threads. Raises what the first part that fails raises."""
    with threads("patch") as pool:
        for job in [pool.submit(part) for part in parts]:
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


def _parts_to_decode(
    writer: ValuesWriter, number: int, data: UInt8Array, pieces: Sequence[_StoredPiece]
) -> Iterator[Callable[[], None]]:
    """What takes one tensor through all patches, in parts that threads share."""
    spec = pieces[-1].piece.tensor.spec
    if not data.size:
        return
    elements = bit_patterns(data.data, type_bytes[spec.dtype])
    # Whatever came before a tensor that is stored whole counts no more.
    last_dense = max((at for at, each in enumerate(pieces) if each.piece.form == "dense"), default=-1)
    is_dense = last_dense >= 0
    if is_dense:
        elements = bit_patterns(pieces[last_dense].data.data, elements.itemsize)
    blocks = [each.data.data for each in pieces[last_dense + 1 :] if each.piece.form == "changed"]
    if not is_dense and not blocks:
        return
    coded = CodedChanges(blocks, elements, name=spec.name)

    def decode(segments: range) -> None:
        if is_dense:
            writer.write_whole(number, elements, segments)  # before what changes of it
        for changes in coded.decoded(segments):
            writer.write_changes(number, changes, elements)

    for begin in coded.segments[::_segments_a_part]:
        yield partial(decode, coded.segments[begin : begin + _segments_a_part])


def _write_leaf(
    decoded: DecodedValues, number: int, data: UInt8Array, begin: int, tensor: TensorDigest
) -> None:
    """The leaf that begins at this byte of a tensor, with all segments in it: no other thread has one of them."""
    elements = bit_patterns(data.data, type_bytes[tensor.spec.dtype])
    places = range(begin // elements.itemsize, (begin + leaf_bytes) // elements.itemsize)
    decoded.write_into(elements, number, places)
    found, expected = leaf_of(data[begin : begin + leaf_bytes].data), tensor.leaves[begin // leaf_bytes]
    if found != expected:
        raise WeightsError(
            f"tensor {tensor.spec.name!r:.80} has after its patches a leaf {found[:16]} instead of "
            f"{expected[:16]}: a patch or what it was applied to was altered; both are made anew, from a full form"
        )
