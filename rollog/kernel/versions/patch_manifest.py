"""The manifest of a version that is stored as what changed since another one, its base.

The text is that of a full form (`manifest.py`) but for its third line, JSON:

    {"base": {"manifest": name, "manifest_sha256": sha256, "sha256": digest, "version": number},
     "shards": [[name, bytes, sha256], ...],
     "tensors": [["changed", shard, begin, end], ["dense", shard, begin, end], ["same"], ...]}

`same` is the tensor of the base, `changed` a block that makes the tensor of that one (`patches.py`), `dense` the tensor
itself. The second line has the leaves of what comes out, so whoever rebuilds a version checks every tensor of it.

A shard has blocks and tensors one behind the other, in `file_order`, without anything between, before or behind them.
The base is told by manifest and digest: one committed notice leads, hash by hash, to all files that a version needs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rollog.kernel.versions.chains import VersionPair
from rollog.kernel.versions.identity import content_digest, content_text
from rollog.kernel.versions.manifest import (
    Manifest,
    manifest_name,
    shard_name_of,
    shards_of,
    storage_keys,
    version_of,
)
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
from rollog.kernel.versions.tensors import file_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.kernel.versions.adapter import Adapter
    from rollog.kernel.versions.identity import TensorDigest

patch_suffix = "patch"
_base_keys = {"manifest", "manifest_sha256", "sha256", "version"}
_forms: Mapping[str, Literal["same", "changed", "dense"]] = {
    "same": "same",
    "changed": "changed",
    "dense": "dense",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchBase:
    """What a patch is applied to: `name` and `manifest_sha256` are those of its manifest."""

    pair: VersionPair
    name: str
    manifest_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchShard:
    """One file of a patch."""

    name: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """How a tensor is stored: from byte `begin` to `end` of a shard, unless it is `same`.

    `tensor` is what comes out.
    """

    tensor: TensorDigest
    form: Literal["same", "changed", "dense"]
    shard: int = 0
    begin: int = 0
    end: int = 0

    @property
    def _place(self) -> list[Any]:
        return ["same"] if self.form == "same" else [self.form, self.shard, self.begin, self.end]


@dataclass(frozen=True, slots=True)
class PatchManifest:
    """A version as what changed since `base`. `pieces` are in `file_order`."""

    base: PatchBase
    shards: tuple[PatchShard, ...]
    pieces: tuple[Piece, ...]
    adapter: Adapter | None = None

    @property
    def tensors(self) -> list[TensorDigest]:
        """All tensors, as they come out."""
        return [piece.tensor for piece in self.pieces]

    @property
    def digest(self) -> str:
        """The content digest."""
        return content_digest(self.tensors, self.adapter)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.spec.num_bytes for tensor in self.tensors)

    @property
    def shard_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.num_bytes for shard in self.shards)

    def encoded(self) -> bytes:
        """The text."""
        pieces = sorted(self.pieces, key=lambda piece: piece.tensor.spec.name.encode())
        storage = {
            "base": {
                "manifest": self.base.name,
                "manifest_sha256": self.base.manifest_sha256,
                "sha256": self.base.pair.digest,
                "version": self.base.pair.version,
            },
            "shards": [[shard.name, shard.num_bytes, shard.sha256] for shard in self.shards],
            "tensors": [piece._place for piece in pieces],  # noqa: SLF001 - of this module
        }
        last = json.dumps(storage, sort_keys=True, separators=(",", ":")).encode("ascii")
        return content_text(self.tensors, self.adapter) + b"\n" + last + b"\n"


def parse_stored(data: bytes, name: str) -> Manifest | PatchManifest:
    """The manifest with this text and name, of a full form or of a patch. Raises WeightsError."""
    with naming_manifest(name):
        content, storage = lines_of(data)
        tensors, adapter = content_of(content)
        rows = object_of(storage, storage_keys)
        if rows["base"] is None:
            return Manifest(shards_of(rows, tensors, name), adapter)
        base = _base(rows["base"], version_of(name))
        shards = _shards(list_of(rows["shards"], "shards"), name)
        places = list_of(rows["tensors"], "tensors", len(tensors))
        pieces = [_piece(*each, len(shards)) for each in zip(tensors, places, strict=True)]
        return PatchManifest(base, shards, _in_order(pieces, shards), adapter)


def _base(value: Any, version: int) -> PatchBase:
    if not isinstance(value, dict) or value.keys() != _base_keys:
        raise Refused(f"its base is {value!r:.80}, an object with {', '.join(sorted(_base_keys))} is needed")
    name = value["manifest"]
    if not isinstance(name, str) or not manifest_name.fullmatch(name):
        raise Refused(f"its base is called {name!r:.80}, which is no name of a manifest")
    number = count_of(value["version"], "the version of its base")
    if version_of(name) != number:
        raise Refused(f"its base is version {number} and called {name}, which is of another version")
    if number >= version:
        # Chains end: each base is lower than what is made of it.
        raise Refused(f"its base is version {number}, which is not lower than {version}")
    return PatchBase(
        pair=VersionPair(number, digest_in(value["sha256"], "the base")),
        name=name,
        manifest_sha256=digest_in(value["manifest_sha256"], "the manifest of the base"),
    )


def _shards(rows: list[Any], manifest: str) -> tuple[PatchShard, ...]:
    if len(rows) > most_shards:
        raise Refused(f"it has {len(rows)} shards, at most {most_shards} are read")
    return tuple(
        _shard(list_of(row, "a shard", 3), shard_name_of(manifest, number, patch_suffix))
        for number, row in enumerate(rows)
    )


def _shard(row: list[Any], expected: str) -> PatchShard:
    name, num_bytes, sha256 = row
    if name != expected:
        raise Refused(f"it names the shard {name!r:.80}, where {expected} is the only name that it may")
    if not count_of(num_bytes, f"the length of {expected}"):
        raise Refused(f"its shard {expected} has no bytes")
    return PatchShard(
        name=expected,
        num_bytes=num_bytes,
        sha256=digest_in(sha256, f"shard {expected}"),
    )


def _piece(tensor: TensorDigest, place: Any, num_shards: int) -> Piece:
    what = f"the place of tensor {tensor.spec.name!r:.80}"
    kind = place[0] if isinstance(place, list) and place else place
    form = _forms.get(kind) if isinstance(kind, str) else None
    if form is None:
        raise Refused(f"{what} is {kind!r:.80}, where same, changed or dense can be")
    if form == "same":
        list_of(place, what, 1)
        return Piece(tensor=tensor, form=form)
    number, begin, end = list_of(place, what, 4)[1:]
    piece = Piece(
        tensor=tensor,
        form=form,
        shard=count_of(number, f"{what}, its shard", num_shards - 1),
        begin=count_of(begin, what),
        end=count_of(end, what),
    )
    num_bytes, most = piece.end - piece.begin, tensor.spec.num_bytes
    if num_bytes <= 0 or num_bytes > most or (form == "dense" and num_bytes != most):
        raise Refused(f"{what} is {num_bytes} bytes of {form} for a tensor of {most}")
    return piece


def _in_order(pieces: Sequence[Piece], shards: Sequence[PatchShard]) -> tuple[Piece, ...]:
    """The pieces in `file_order`, which fill the shards one behind the other."""
    by_name = {piece.tensor.spec.name: piece for piece in pieces}
    ordered = [by_name[spec.name] for spec in file_order([piece.tensor.spec for piece in pieces])]
    number, position = 0, 0
    for piece in ordered:
        if piece.form == "same":
            continue
        if number < len(shards) and position == shards[number].num_bytes:
            number, position = number + 1, 0
        if (piece.shard, piece.begin) != (number, position):
            raise Refused(
                f"tensor {piece.tensor.spec.name!r:.80} is said to be at {piece.begin} of shard {piece.shard}, where "
                f"only {position} of {number} can be"
            )
        position = piece.end
    used = number + 1 if position else 0
    if used != len(shards) or (shards and position != shards[-1].num_bytes):
        raise Refused(f"its tensors fill {used} shards, the last up to {position}; it names {len(shards)}")
    return tuple(ordered)
