"""Whether stored weights are those of their notice: counted again with the standard library alone.

A version is one file whose sha256 is the notice's, or a manifest of three lines and shards. The first two lines of a
manifest have the notice's sha256; they name for each tensor the sha256 of each 16 MiB of its bytes. The third names the
sha256 of each shard, which is a safetensors file: the length of a header, the header as JSON, then the tensors' bytes.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_leaf_bytes = 16 << 20


def fault_of_version(notice: Mapping[str, Any], directory: Path) -> str | None:
    """What is wrong with the files of a version, in words; None where all bytes are as noticed."""
    path = directory / Path(notice["name"]).name
    where = f"weights of version {notice['version']}"
    if not path.is_file():
        return f"{where} are not there: {path.name}"
    data = path.read_bytes()
    if notice["format"] != "manifest-1":
        return None if _hex(data) == notice["sha256"] else f"{where} have another sha256: {path.name}"
    fault = _fault_of_manifest(data, notice, directory)
    return fault and f"{where} {fault}"


def _fault_of_manifest(data: bytes, notice: Mapping[str, Any], directory: Path) -> str | None:
    content, _, storage = data.rstrip(b"\n").rpartition(b"\n")
    if (_hex(data), _hex(content)) != (notice["manifest_sha256"], notice["sha256"]):
        return f"have another sha256: {notice['name']}"
    leaves = {name: listed for name, _, _, listed in json.loads(content.partition(b"\n")[2])["tensors"]}
    for name, _, expected in json.loads(storage)["shards"]:
        shard = directory / Path(name).name
        if not shard.is_file():
            return f"are not there: {shard.name}"
        if _hex(shard.read_bytes()) != expected:
            return f"have another sha256: {shard.name}"
        for tensor, found in _leaves(shard.read_bytes()):
            if leaves.pop(tensor, None) != found:
                return f"have another sha256: {tensor} in {shard.name}"
    return f"lack {', '.join(leaves)}: {notice['name']}" if leaves else None


def _leaves(shard: bytes) -> Iterator[tuple[str, list[str]]]:
    """Names of tensors, and sha256 of each 16 MiB of theirs."""
    data = 8 + int.from_bytes(shard[:8], "little")
    for name, entry in json.loads(shard[8:data]).items():
        if name != "__metadata__":
            begin, end = (data + offset for offset in entry["data_offsets"])
            places = range(begin, end, _leaf_bytes)
            yield name, [_hex(shard[place : min(place + _leaf_bytes, end)]) for place in places]


def _hex(data: bytes) -> str:
    return sha256(data).hexdigest()
