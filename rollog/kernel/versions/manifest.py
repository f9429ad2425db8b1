"""The manifest of a version: its tensors, and which bytes of which shard are which of them.

A text of three lines. The first two are the text of the content digest (`identity.py`); the third is JSON:

    {"base": null, "shards": [[name, bytes, sha256], ...], "tensors": [["dense", shard, begin, end], ...]}

`tensors` has one entry for each tensor, in the order of the second line: the number of its shard, and where it is in
the shard's data. That is a full form. `base`, and entries other than `dense`, are of versions that are stored as what
changed (`patch_manifest.py`).

A shard is a plain safetensors file. Its name is made from the manifest's, so a manifest leads to no file of another
version and out of no directory. Everything in a manifest is bounded before memory is taken for it.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.identity import TensorDigest, content_digest, content_text
from rollog.kernel.versions.manifest_text import (
    Refused,
    content_of,
    count_of,
    digest_in,
    lines_of,
    list_of,
    most_shards,
    naming_manifest,
    object_of,
)
from rollog.kernel.versions.safetensors import file_header
from rollog.kernel.versions.tensors import file_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.kernel.versions.adapter import Adapter

manifest_format = "manifest-1"
"""What a notice says of itself that names a manifest."""
manifest_suffix = ".manifest"
no_sha256 = "0" * 64
"""Of a shard in a reader's own copy after patches: its tensors are compared by their leaves, the file is not read."""
storage_keys = {"base", "shards", "tensors"}
"""Of the third line."""
_stem = r"v[0-9]{6,9}-[0-9a-f]{16}"
manifest_name = re.compile(rf"{_stem}\.manifest")
shard_name = re.compile(rf"{_stem}-[0-9]{{2,5}}\.(safetensors|patch)")
"""Of a full form and of a patch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file: a safetensors file of these tensors, in `file_order`. `num_bytes` is its length."""

    name: str
    num_bytes: int
    sha256: str
    tensors: tuple[TensorDigest, ...]

    @property
    def header(self) -> bytes:
        """What the file begins with: a shard's bytes follow from the manifest, to the last one."""
        return file_header([tensor.spec for tensor in self.tensors])


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version and its shards."""

    shards: tuple[Shard, ...]
    adapter: Adapter | None = None

    @property
    def tensors(self) -> list[TensorDigest]:
        """All tensors."""
        return [tensor for shard in self.shards for tensor in shard.tensors]

    @property
    def digest(self) -> str:
        """The content digest."""
        return content_digest(self.tensors, self.adapter)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.spec.num_bytes for tensor in self.tensors)

    def encoded(self) -> bytes:
        """The text."""
        placed = [
            (tensor.spec.name.encode(), ["dense", number, *place])
            for number, shard in enumerate(self.shards)
            for tensor, place in zip(shard.tensors, _places(shard.tensors), strict=True)
        ]
        storage = {
            "base": None,
            "shards": [[shard.name, shard.num_bytes, shard.sha256] for shard in self.shards],
            "tensors": [place for _, place in sorted(placed)],
        }
        last = json.dumps(storage, sort_keys=True, separators=(",", ":")).encode("ascii")
        return content_text(self.tensors, self.adapter) + b"\n" + last + b"\n"


def new_manifest_name(version: int) -> str:
    """A name for the manifest of a version that nobody has used. Raises WeightsError for what is no version."""
    name = f"v{version:06d}-{secrets.token_hex(8)}{manifest_suffix}"
    if not manifest_name.fullmatch(name):
        raise WeightsError(f"{version} is no policy version: it has no name in a weights store")
    return name


def shard_name_of(manifest: str, number: int, suffix: str = "safetensors") -> str:
    """Name of one shard of a manifest of this name."""
    return f"{stem_of(manifest)}-{number:02d}.{suffix}"


def stem_of(name: str) -> str:
    """What manifest and shards of one version have in common in their names: version and attempt."""
    return "-".join(name.split(".", 1)[0].split("-")[:2])


def parse_manifest(data: bytes, name: str) -> Manifest:
    """The manifest with this text and name. Raises WeightsError, naming what is wrong with it."""
    with naming_manifest(name):
        content, storage = lines_of(data)
        tensors, adapter = content_of(content)
        rows = object_of(storage, storage_keys)
        if rows["base"] is not None:
            raise Refused("it is stored as what changed since another version, where a full form is needed")
        return Manifest(shards_of(rows, tensors, name), adapter)


def shards_of(storage: Mapping[str, Any], tensors: Sequence[TensorDigest], name: str) -> tuple[Shard, ...]:
    """The shards of a full form, of which `storage` is the third line."""
    rows = list_of(storage["shards"], "shards")
    if len(rows) > most_shards:
        raise Refused(f"it has {len(rows)} shards, at most {most_shards} are read")
    places = list_of(storage["tensors"], "tensors", len(tensors))
    held: list[list[tuple[tuple[int, int], TensorDigest]]] = [[] for _ in rows]
    for tensor, place in zip(tensors, places, strict=True):
        number, begin, end = _place(place, tensor.spec.name, len(rows))
        held[number].append(((begin, end), tensor))
    return tuple(
        _shard(list_of(row, "a shard", 3), shard_name_of(name, number), held[number])
        for number, row in enumerate(rows)
    )


def _place(place: Any, name: str, num_shards: int) -> tuple[int, int, int]:
    what = f"the place of tensor {name!r:.80}"
    if not isinstance(place, list) or not place or place[0] != "dense":
        found = place[0] if isinstance(place, list) and place else place
        raise Refused(f"{what} is {found!r:.80}, where only `dense` can be")
    number, begin, end = list_of(place, what, 4)[1:]
    return count_of(number, f"{what}, its shard", num_shards - 1), count_of(begin, what), count_of(end, what)


def _shard(row: list[Any], expected: str, held: Sequence[tuple[tuple[int, int], TensorDigest]]) -> Shard:
    name, num_bytes, sha256 = row
    if name != expected:
        raise Refused(f"it names the shard {name!r:.80}, where {expected} is the only name that it may")
    by_name = {tensor.spec.name: (place, tensor) for place, tensor in held}
    ordered = [by_name[spec.name] for spec in file_order([tensor.spec for _, tensor in held])]
    shard = Shard(
        name=name,
        num_bytes=count_of(num_bytes, f"the length of {expected}"),
        sha256=digest_in(sha256, f"shard {expected}"),
        tensors=tuple(tensor for _, tensor in ordered),
    )
    for (found, tensor), place in zip(ordered, _places(shard.tensors), strict=True):
        if found != place:
            raise Refused(
                f"tensor {tensor.spec.name!r:.80} is said to be at {found} of {expected}, where only {place} can be"
            )
    length = len(shard.header) + sum(tensor.spec.num_bytes for tensor in shard.tensors)
    if shard.num_bytes != length:
        raise Refused(f"{expected} is said to have {shard.num_bytes} bytes; its tensors make {length}")
    return shard


def _places(tensors: Sequence[TensorDigest]) -> list[tuple[int, int]]:
    """Begin and end of each tensor in the data of its shard."""
    places, begin = [], 0
    for tensor in tensors:
        end = begin + tensor.spec.num_bytes
        places.append((begin, end))
        begin = end
    return places


def manifest_sha256(data: bytes) -> str:
    """What a notice says of a manifest's text."""
    return hashlib.sha256(data).hexdigest()


def version_of(name: str) -> int:
    """The version in the name of a manifest or a shard."""
    return int(name[1:].partition("-")[0])
