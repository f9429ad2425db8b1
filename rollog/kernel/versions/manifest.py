"""The manifest of a version: its tensors, and which bytes of which shard are which of them.

A text of three lines. The first two are the text of the content digest (`identity.py`); the third is JSON:

    {"base": null, "shards": [[name, bytes, sha256], ...], "tensors": [["dense", shard, begin, end], ...]}

`tensors` has one entry for each tensor, in the order of the second line: the number of its shard, and where it is in
the shard's data. `base`, and entries other than `dense`, are for versions that are stored as what changed; this release
reads full forms alone and refuses others by name.

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
from rollog.kernel.versions.identity import TensorDigest, content_digest, content_text, first_line, num_leaves
from rollog.kernel.versions.safetensors import file_header, metadata_name
from rollog.kernel.versions.tensors import TensorSpec, file_order, type_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

manifest_format = "manifest-1"
"""What a notice says of itself that names a manifest."""
manifest_suffix = ".manifest"
most_manifest_bytes = 64 << 20
"""A model of 10^12 parameters takes a tenth of it."""
most_shards = 10_000
_most_name_characters = 1000
_most_dimensions = 16
_most_bytes = 1 << 60

_stem = r"v[0-9]{6,9}-[0-9a-f]{16}"
manifest_name = re.compile(rf"{_stem}\.manifest")
shard_name = re.compile(rf"{_stem}-[0-9]{{2,5}}\.safetensors")
_sha256 = re.compile(r"[0-9a-f]{64}")


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

    @property
    def tensors(self) -> list[TensorDigest]:
        """All tensors."""
        return [tensor for shard in self.shards for tensor in shard.tensors]

    @property
    def digest(self) -> str:
        """The content digest."""
        return content_digest(self.tensors)

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
        return content_text(self.tensors) + b"\n" + last + b"\n"


def new_manifest_name(version: int) -> str:
    """A name for the manifest of a version that nobody has used. Raises WeightsError for what is no version."""
    name = f"v{version:06d}-{secrets.token_hex(8)}{manifest_suffix}"
    if not manifest_name.fullmatch(name):
        raise WeightsError(f"{version} is no policy version: it has no name in a weights store")
    return name


def shard_name_of(manifest: str, number: int) -> str:
    """Name of one shard of a manifest of this name."""
    return f"{stem_of(manifest)}-{number:02d}.safetensors"


def stem_of(name: str) -> str:
    """What manifest and shards of one version have in common in their names: version and attempt."""
    return "-".join(name.split(".", 1)[0].split("-")[:2])


def parse_manifest(data: bytes, name: str) -> Manifest:
    """The manifest with this text and name. Raises WeightsError, naming what is wrong with it."""
    try:
        content, storage = _lines(data)
        tensors = _tensors(content)
        return Manifest(_shards(storage, tensors, name))
    except _Refused as refused:
        raise WeightsError(
            f"the manifest {name} cannot be used: {refused}; it was not written by this release of rollog, or altered"
        ) from None


class _Refused(Exception):
    """What is wrong with a manifest."""


def _lines(data: bytes) -> tuple[bytes, bytes]:
    if len(data) > most_manifest_bytes:
        raise _Refused(f"it has {len(data)} bytes, at most {most_manifest_bytes} are read")
    lines = data.split(b"\n", 4)
    if len(lines) != 4 or lines[3] or lines[0] + b"\n" != first_line:  # noqa: PLR2004 - three lines and an end
        raise _Refused(f"it is not {first_line.decode().strip()} and two lines of JSON")
    return lines[1], lines[2]


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Refused(f"it holds what is no JSON ({error})") from None


def _object(text: bytes, keys: set[str]) -> dict[str, Any]:
    found = _json(text)
    if not isinstance(found, dict) or found.keys() != keys:
        raise _Refused(f"it is expected to have {', '.join(sorted(keys))}")
    return found


def _list(value: Any, what: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise _Refused(
            f"{what} is {value!r:.80}, a list{'' if length is None else f' of {length}'} is needed"
        )
    return value


def _count(value: Any, what: str, most: int = _most_bytes) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise _Refused(f"{what} is {value!r:.80}, a number from 0 to {most} is needed")
    return value


def _digest(value: Any, what: str) -> str:
    if not isinstance(value, str) or not _sha256.fullmatch(value):
        raise _Refused(f"{what} has the sha256 {value!r:.80}, 64 hexadecimal digits are needed")
    return value


def _tensors(text: bytes) -> list[TensorDigest]:
    content = _object(text, {"adapter", "tensors"})
    if content["adapter"] is not None:
        raise _Refused("it is of an adapter, which this release of rollog does not read")
    tensors = [_tensor(_list(row, "a tensor", 4)) for row in _list(content["tensors"], "tensors")]
    if len({tensor.spec.name for tensor in tensors}) != len(tensors):
        raise _Refused("it has a tensor twice")
    if sum(tensor.spec.num_bytes for tensor in tensors) > _most_bytes:
        raise _Refused(f"its tensors have more than {_most_bytes} bytes")
    if content_text(tensors) != first_line + text:
        raise _Refused("its second line is not written as the content digest wants it")
    return tensors


def _tensor(row: list[Any]) -> TensorDigest:
    name, dtype, dimensions, leaves = row
    if not isinstance(name, str) or not 0 < len(name) <= _most_name_characters or not _is_text(name):
        raise _Refused(f"a tensor is called {name!r:.80}, 1 to {_most_name_characters} characters are needed")
    if name == metadata_name:
        raise _Refused(f"a tensor is called {name}, which in a safetensors file is no tensor")
    if not isinstance(dtype, str) or dtype not in type_bytes:
        raise _Refused(f"tensor {name!r:.80} has elements of type {dtype!r:.80}, which is not known")
    shape = tuple(
        _count(size, f"a dimension of tensor {name!r:.80}") for size in _list(dimensions, "a shape")
    )
    if len(shape) > _most_dimensions:
        raise _Refused(
            f"tensor {name!r:.80} has {len(shape)} dimensions, at most {_most_dimensions} are read"
        )
    spec = TensorSpec(name, dtype, shape)
    digests = _list(leaves, f"the leaves of tensor {name!r:.80}")
    if spec.num_bytes > _most_bytes or len(digests) != num_leaves(spec):
        raise _Refused(f"tensor {name!r:.80} of {spec.num_bytes} bytes has {len(digests)} leaves")
    return TensorDigest(spec, tuple(_digest(leaf, f"tensor {name!r:.80}") for leaf in digests))


def _is_text(name: str) -> bool:
    """Whether it can be written: JSON can hold halves of characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shards(text: bytes, tensors: Sequence[TensorDigest], name: str) -> tuple[Shard, ...]:
    storage = _object(text, {"base", "shards", "tensors"})
    if storage["base"] is not None:
        raise _Refused("it is stored as what changed since another version, which this release does not read")
    rows = _list(storage["shards"], "shards")
    if len(rows) > most_shards:
        raise _Refused(f"it has {len(rows)} shards, at most {most_shards} are read")
    places = _list(storage["tensors"], "tensors", len(tensors))
    held: list[list[tuple[tuple[int, int], TensorDigest]]] = [[] for _ in rows]
    for tensor, place in zip(tensors, places, strict=True):
        number, begin, end = _place(place, tensor.spec.name, len(rows))
        held[number].append(((begin, end), tensor))
    return tuple(
        _shard(_list(row, "a shard", 3), shard_name_of(name, number), held[number])
        for number, row in enumerate(rows)
    )


def _place(place: Any, name: str, num_shards: int) -> tuple[int, int, int]:
    what = f"the place of tensor {name!r:.80}"
    if not isinstance(place, list) or not place or place[0] != "dense":
        found = place[0] if isinstance(place, list) and place else place
        raise _Refused(f"{what} is {found!r:.80}, and this release reads `dense` alone")
    number, begin, end = _list(place, what, 4)[1:]
    return _count(number, f"{what}, its shard", num_shards - 1), _count(begin, what), _count(end, what)


def _shard(row: list[Any], expected: str, held: Sequence[tuple[tuple[int, int], TensorDigest]]) -> Shard:
    name, num_bytes, sha256 = row
    if name != expected:
        raise _Refused(f"it names the shard {name!r:.80}, where {expected} is the only name that it may")
    by_name = {tensor.spec.name: (place, tensor) for place, tensor in held}
    ordered = [by_name[spec.name] for spec in file_order([tensor.spec for _, tensor in held])]
    shard = Shard(
        name=name,
        num_bytes=_count(num_bytes, f"the length of {expected}"),
        sha256=_digest(sha256, f"shard {expected}"),
        tensors=tuple(tensor for _, tensor in ordered),
    )
    for (found, tensor), place in zip(ordered, _places(shard.tensors), strict=True):
        if found != place:
            raise _Refused(
                f"tensor {tensor.spec.name!r:.80} is said to be at {found} of {expected}, where only {place} can be"
            )
    length = len(shard.header) + sum(tensor.spec.num_bytes for tensor in shard.tensors)
    if shard.num_bytes != length:
        raise _Refused(f"{expected} is said to have {shard.num_bytes} bytes; its tensors make {length}")
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
