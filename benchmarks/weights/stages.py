"""Processor seconds of each stage of a patch, and of its floor: what the same memory traffic takes at least.

| stage | what | floor |
| --- | --- | --- |
| find | which elements differ | both versions compared, the outcome not looked at |
| pack | gaps and differences as bytes | the changed elements gathered from both versions |
| compress | zstd | these bytes copied |
| encode | the three together, and the block made of them | both versions compared |
| decode | offsets and differences of a block | these copied |
| apply | differences added to the base | the elements at these offsets read |
| sha256 | digest of all tensors | the digest of as many bytes in one piece |

Floors are taken in passes of their own, so that none finds its data in the cache.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.versions.blocks import Layout, segment_elements
from rollog.kernel.versions.differences import packed_differences
from rollog.kernel.versions.frames import Compressor
from rollog.kernel.versions.gaps import packed_gaps
from rollog.kernel.versions.patches import CodedChanges, apply, changes_in, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.weights.updates import Tensors
    from rollog.kernel.versions.bit_patterns import BitPatterns
    from rollog.kernel.versions.patches import Changes, TensorPatch
    from schemas.arrays import UInt8Array

stages = ("find", "pack", "compress", "encode", "decode", "apply", "sha256")

Patch = dict[str, "TensorPatch"]


class Seconds(defaultdict[str, float]):
    """Processor seconds by stage; those of a floor under `STAGE.floor`."""

    def __init__(self) -> None:
        super().__init__(float)

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Add what the body takes."""
        began = time.process_time()
        yield
        self[stage] += time.process_time() - began


def packed_segments(base: Tensors, new: Tensors, seconds: Seconds) -> Iterator[tuple[UInt8Array, UInt8Array]]:
    """Gaps and differences of every segment that changed."""
    for old_segment, new_segment in _segments(base, new):
        with seconds.of("find"):
            changes = changes_in(old_segment, new_segment)
        if changes.offsets.size:
            with seconds.of("pack"):
                packed = packed_gaps(changes.offsets), packed_differences(changes.old, changes.new)
            yield packed


def time_coding(base: Tensors, new: Tensors, seconds: Seconds) -> tuple[int, int]:
    """Time find, pack and compress with their floors; returns changed elements and bytes before compression.

    The latter are positions as bytes, and the new values as they are.
    """
    packed = list(packed_segments(base, new, seconds))
    compressor = Compressor()
    with seconds.of("compress"):
        for gaps, differences in packed:
            compressor.frame(gaps.data)
            compressor.frame(differences.data)
    with seconds.of("compress.floor"):
        for gaps, differences in packed:
            gaps.copy()
            differences.copy()
    flags = np.empty(segment_elements, dtype=np.bool_)
    with seconds.of("find.floor"):
        for old_segment, new_segment in _segments(base, new):
            np.not_equal(old_segment, new_segment, out=flags[: old_segment.size])
    seconds["encode.floor"] = seconds["find.floor"]
    _time_gathering(base, new, seconds)
    (item_size,) = {tensor.dtype.itemsize for tensor in base.values()}
    num_changes = sum(differences.size for _, differences in packed) // item_size
    return num_changes, sum(gaps.size + differences.size for gaps, differences in packed)


def encoded(base: Tensors, new: Tensors, seconds: Seconds) -> Patch:
    """The patch from one version to the next."""
    with seconds.of("encode"):
        return {name: encode(tensor, new[name]) for name, tensor in base.items()}


def patched(tensors: Tensors, patches: Sequence[Patch], dense: Sequence[Tensors], seconds: Seconds) -> None:
    """Bring `tensors` in place from one version to a later one; `dense` holds what each patch does not code."""
    for name, target in tensors.items():
        blocks: list[bytes] = []
        for patch, whole in zip(patches, dense, strict=True):
            if patch[name].form == "dense":
                target[:] = whole[name]
                blocks = []
            elif patch[name].form == "changed":
                blocks.append(patch[name].block)
        if not blocks:
            continue
        with seconds.of("decode"):
            coded = CodedChanges(blocks, Layout(target.size, target.itemsize), name=name)
            changes = list(coded.decoded(coded.segments))
        _time_applying(target, changes, seconds)


def digest(tensors: Mapping[str, BitPatterns], seconds: Seconds) -> str:
    """The sha256 of all tensors, names and bytes."""
    with seconds.of("sha256"):
        found = hashlib.sha256()
        for name, tensor in tensors.items():
            found.update(f"{name} {tensor.nbytes}\n".encode())
            found.update(tensor.data)
    return found.hexdigest()


def time_hashing_one_piece(data: bytes, seconds: Seconds) -> None:
    """The floor of a digest of so many bytes."""
    with seconds.of("sha256.floor"):
        hashlib.sha256(data)


def _time_gathering(base: Tensors, new: Tensors, seconds: Seconds) -> None:
    for old_segment, new_segment in _segments(base, new):
        offsets = changes_in(old_segment, new_segment).offsets
        with seconds.of("pack.floor"):
            old_segment.take(offsets)
            new_segment.take(offsets)


def _time_applying(target: BitPatterns, changes: Sequence[Changes], seconds: Seconds) -> None:
    with seconds.of("decode.floor"):
        for each in changes:
            each.offsets.copy()
            each.differences.copy()
    with seconds.of("apply"):
        for each in changes:
            apply(each, target)
    with seconds.of("apply.floor"):
        for each in changes:
            target[each.first : each.first + segment_elements].take(each.offsets)


def _segments(base: Tensors, new: Tensors) -> Iterator[tuple[BitPatterns, BitPatterns]]:
    for name, tensor in base.items():
        for first in range(0, tensor.size, segment_elements):
            part = slice(first, first + segment_elements)
            yield tensor[part], new[name][part]
