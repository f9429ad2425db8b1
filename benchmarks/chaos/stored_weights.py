"""Whether stored weights are those of their notice: counted again with the standard library and zstandard alone.

A version is one file whose sha256 is the notice's, or a manifest of three lines and shards. The first two lines of a
manifest have the notice's sha256; they name for each tensor the sha256 of each 16 MiB of its bytes. The third names the
sha256 of each shard, which is a safetensors file: the length of a header, the header as JSON, then the tensors' bytes.
Shards of a patch hold what changed since another version (`stored_patches.py`).
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.stored_patches import tensors_of_version

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    for name, _, expected in json.loads(storage)["shards"]:
        shard = directory / Path(name).name
        if not shard.is_file():
            return f"are not there: {shard.name}"
        if _hex(shard.read_bytes()) != expected:
            return f"have another sha256: {shard.name}"
    return _fault_of_tensors(content, notice["name"], directory)


def _fault_of_tensors(content: bytes, name: str, directory: Path) -> str | None:
    leaves = {tensor: listed for tensor, _, _, listed in json.loads(content.partition(b"\n")[2])["tensors"]}
    try:
        tensors = tensors_of_version(name, directory)
    except FileNotFoundError as error:
        return f"are based on what is not there: {Path(error.filename).name}"
    except ValueError as error:
        return f"have another sha256: {name}, or what it is based on ({error})"
    for tensor, data in tensors.items():
        if leaves.pop(tensor, None) != [
            _hex(data[begin : begin + _leaf_bytes]) for begin in range(0, len(data), _leaf_bytes)
        ]:
            return f"have another sha256: {tensor} in {name}"
    return f"lack {', '.join(leaves)}: {name}" if leaves else None


def _hex(data: bytes) -> str:
    return sha256(data).hexdigest()
