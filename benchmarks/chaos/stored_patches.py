"""The tensors of a stored version, patches applied one after the other: read after the layout, with zstandard alone.

A patch's manifest names that of its base, and says of each tensor whether it is the base's, stored whole, or a block:
`RWP1`, bytes of an element, elements, changes; then for each 2**20 elements the number of changes, the bytes of gaps,
and the lengths of two zstd frames: gaps between positions, where 255 passes over 255 elements, and differences of bit
patterns in zigzag, their bytes in planes.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterator

_segment_elements = 1 << 20
_escape = 255


def tensors_of_version(manifest: str, directory: Path) -> dict[str, bytes]:
    """The bytes of each tensor. Raises FileNotFoundError, and ValueError for what is no patch."""
    text = (directory / Path(manifest).name).read_bytes().rstrip(b"\n").split(b"\n")
    names = [row[0] for row in json.loads(text[1])["tensors"]]
    storage = json.loads(text[2])
    shards = [(directory / Path(name).name).read_bytes() for name, _, _ in storage["shards"]]
    if storage["base"] is None:
        return {name: tensor for shard in shards for name, tensor in tensors_of_shard(shard)}
    base = tensors_of_version(storage["base"]["manifest"], directory)
    return {
        name: _made(form, base[name], shards[place[0]][place[1] : place[2]] if place else b"")
        for name, (form, *place) in zip(names, storage["tensors"], strict=True)
    }


def _made(form: str, base: bytes, stored: bytes) -> bytes:
    if form == "same":
        return base
    return stored if form == "dense" else _patched(base, stored)


def tensors_of_shard(shard: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the tensors in a safetensors file."""
    data = 8 + int.from_bytes(shard[:8], "little")
    for name, entry in json.loads(shard[8:data]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, shard[data + begin : data + end]


def _patched(base: bytes, block: bytes) -> bytes:
    magic, size, num_elements, _ = struct.unpack_from("<4sIQQ", block)
    if magic != b"RWP1" or size * num_elements != len(base):
        raise ValueError("a block is not of its tensor")
    new, at = bytearray(base), 24
    for first in range(0, num_elements, _segment_elements):
        num_changes, _, *lengths = struct.unpack_from("<IIII", block, at)
        at += 16
        if num_changes:
            gaps = _content(block[at : at + lengths[0]])
            planes = _content(block[at + lengths[0] : at + sum(lengths)])
            for number, place in enumerate(_places(gaps, first)):
                zigzag = sum(planes[plane * num_changes + number] << 8 * plane for plane in range(size))
                difference = zigzag >> 1 if zigzag % 2 == 0 else -(zigzag >> 1) - 1
                old = int.from_bytes(new[place * size : (place + 1) * size], "little")
                value = (old + difference) % (1 << 8 * size)
                new[place * size : (place + 1) * size] = value.to_bytes(size, "little")
        at += sum(lengths)
    return bytes(new)


def _content(frame: bytes) -> bytes:
    try:
        return zstandard.decompress(frame)
    except zstandard.ZstdError as error:
        raise ValueError(f"a block has no frame: {error}") from error


def _places(gaps: bytes, first: int) -> Iterator[int]:
    place = first
    for gap in gaps:
        place += gap
        if gap != _escape:
            yield place
            place += 1
