"""Reading a version that is stored as a manifest and shards: from any folder of a store, each byte checked.

A patch leads to its base, and so on down to a full form. Every manifest on the way has the sha256 that the one before
names, and the first the one of its notice.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from rollog.kernel.atomic_write import partial_file
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.chains import VersionPair
from rollog.kernel.versions.checking import check_shard
from rollog.kernel.versions.manifest import Manifest, manifest_sha256
from rollog.kernel.versions.manifest_text import most_manifest_bytes
from rollog.kernel.versions.patch_manifest import PatchManifest, parse_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import IO

    from rollog.kernel.store_folder import StoreFolder
    from rollog.kernel.versions.manifest import Shard
    from rollog.kernel.versions.patch_manifest import PatchShard
    from schemas.weights import WeightVersion

_AnyShard = TypeVar("_AnyShard", "Shard", "PatchShard")

_no_spare: Mapping[str, SpareFile] = MappingProxyType({})
most_patches = 255
"""In one chain; a trainer makes at most 15, and a forged chain could go on for very long."""
_chunk_bytes = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One form of a version with the name and the text of its manifest."""

    pair: VersionPair
    name: str
    manifest: Manifest | PatchManifest
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What makes a version: a full form, and patches, oldest first. `full` is None where a reader's own copy does."""

    full: Stored | None
    patches: tuple[PatchManifest, ...]


@dataclass(frozen=True, slots=True)
class SpareFile:
    """A file that nobody needs, in the directory of a shard of its size; what is written to `data` is in the file.

    Reading 1 GB into it takes 0.2 s, into a new file in shared memory 0.9 s, and its sha256 on two processors 0.4 s.
    """

    path: Path
    data: memoryview


def noticed_form(folder: StoreFolder, notice: WeightVersion) -> Stored:
    """The form that a notice names. Raises WeightsError where it is not the noticed one."""
    text = _text(folder, notice.name, notice.manifest_sha256)
    manifest = parse_stored(text, notice.name)
    if (manifest.digest, manifest.num_bytes) != (notice.sha256, notice.num_bytes):
        raise WeightsError(
            f"weights {notice.name} are {manifest.digest} with {manifest.num_bytes} bytes, the notice of version "
            f"{notice.version} is of {notice.sha256} with {notice.num_bytes}; they are not used"
        )
    noticed = None if notice.base is None else VersionPair(notice.base.version, notice.base.sha256)
    base = manifest.base.pair if isinstance(manifest, PatchManifest) else None
    if base != noticed:
        raise WeightsError(
            f"weights {notice.name} have {base or 'no base'}, the notice of version {notice.version} names "
            f"{noticed or 'none'}; they are not used"
        )
    return Stored(
        pair=VersionPair(notice.version, notice.sha256), name=notice.name, manifest=manifest, text=text
    )


def chain_to(folder: StoreFolder, notice: WeightVersion, have: VersionPair | None = None) -> Chain:
    """What makes the version of a notice, from `have` where a reader has that one already. Raises WeightsError."""
    at, patches = noticed_form(folder, notice), list[PatchManifest]()
    target = at.manifest
    while at.pair != have:
        if isinstance(at.manifest, Manifest):
            return Chain(full=at, patches=tuple(reversed(patches)))
        patches.append(at.manifest)
        if at.manifest.base.pair == have:
            break
        if len(patches) > most_patches:
            raise WeightsError(
                f"weights {notice.name} are more than {most_patches} patches after a full form; they are not used: "
                "load another version"
            )
        at = _base_of(folder, at.manifest, target, notice)
    return Chain(full=None, patches=tuple(reversed(patches)))


def all_shards(folder: StoreFolder, notice: WeightVersion) -> list[Shard | PatchShard]:
    """Those of a version and of all that it is based on. Raises WeightsError."""
    chain = chain_to(folder, notice)
    assert chain.full is not None
    assert isinstance(chain.full.manifest, Manifest)
    return [*chain.full.manifest.shards, *(shard for patch in chain.patches for shard in patch.shards)]


def stored_patch(folder: StoreFolder, notice: WeightVersion, directory: Path) -> list[Path]:
    """Copy the files of a patch as they are into a directory, its manifest last. Raises WeightsError."""
    form = noticed_form(folder, notice)
    assert isinstance(form.manifest, PatchManifest)
    directory.mkdir(parents=True, exist_ok=True)
    download_patch(folder, form.manifest, directory)
    path = write_manifest(directory, form.name, form.text)
    return [*(directory / shard.name for shard in form.manifest.shards), path]


def check_noticed(folder: StoreFolder, notice: WeightVersion, *, with_sha256: bool = False) -> None:
    """Read all shards of a full form through, keeping nothing. Raises WeightsError."""
    manifest = noticed_form(folder, notice).manifest
    assert isinstance(manifest, Manifest)
    for shard in manifest.shards:
        with folder.filesystem.open(folder.path(shard.name), "rb") as source:
            check_shard(source, shard, with_sha256=with_sha256)


def download_full(
    folder: StoreFolder, form: Stored, directory: Path, spare: Mapping[str, SpareFile] = _no_spare
) -> Path:
    """Copy a full form into an existing directory; returns the path of the manifest there. Raises WeightsError.

    Files of `spare`, by the names of shards, become these.
    """
    assert isinstance(form.manifest, Manifest)
    for shard in form.manifest.shards:
        if not _is_there(directory / shard.name, shard):
            with partial_file(directory) as partial:
                folder.read(shard.name, _taking(shard, partial, spare.get(shard.name)))
                partial.replace(directory / shard.name)
    return write_manifest(directory, form.name, form.text)


def download_patch(folder: StoreFolder, patch: PatchManifest, directory: Path) -> None:
    """Copy the shards of a patch into an existing directory, their digests compared. Raises WeightsError."""
    for shard in patch.shards:
        target = directory / shard.name
        if target.exists() and target.stat().st_size == shard.num_bytes:
            # It got its name when it was whole.
            continue
        with partial_file(directory) as partial:
            folder.read(shard.name, _copying(check_patch_shard, shard, partial))
            partial.replace(target)


def check_patch_shard(source: IO[bytes], shard: PatchShard, target: IO[bytes] | None = None) -> None:
    """Read a shard of a patch through, into `target` if there is one. Raises WeightsError where it was altered."""
    digest, num_bytes = hashlib.sha256(), 0
    while num_bytes <= shard.num_bytes and (chunk := source.read(_chunk_bytes)):
        digest.update(chunk)
        num_bytes += len(chunk)
        if target is not None:
            target.write(chunk)
    if num_bytes != shard.num_bytes:
        at_least = "at least " if num_bytes > shard.num_bytes else ""
        raise WeightsError(
            f"{shard.name} has {at_least}{num_bytes} bytes instead of {shard.num_bytes}; the file was cut or "
            "overwritten and is not used"
        )
    if digest.hexdigest() != shard.sha256:
        raise WeightsError(
            f"{shard.name} has sha256 {digest.hexdigest()} instead of {shard.sha256}; the file was altered and is not "
            "used"
        )


def write_manifest(directory: Path, name: str, text: bytes) -> Path:
    """Put a manifest into a directory that has its shards; returns its path."""
    with partial_file(directory) as partial:
        partial.write_bytes(text)
        partial.replace(directory / name)
    return directory / name


def _copying(
    check: Callable[[IO[bytes], _AnyShard, IO[bytes]], None], shard: _AnyShard, path: Path
) -> Callable[[IO[bytes]], None]:
    """Copies a shard to a path while it is checked; what was there is overwritten."""

    def copy(source: IO[bytes]) -> None:
        with path.open("wb") as sink:
            check(source, shard, sink)

    return copy


def _taking(shard: Shard, path: Path, spare: SpareFile | None) -> Callable[[IO[bytes]], None]:
    """Reads a shard to a path while it is checked; a spare file is there from now on."""
    if spare is None:
        return _copying(check_shard, shard, path)
    spare.path.rename(path)
    return lambda source: check_shard(source, shard, onto=spare.data)


def _text(folder: StoreFolder, name: str, sha256: str) -> bytes:
    def checked(source: IO[bytes]) -> bytes:
        text = source.read(most_manifest_bytes + 1)
        found = manifest_sha256(text)
        if found != sha256:
            raise WeightsError(
                f"weights {name} have sha256 {found} instead of {sha256}; the manifest was altered and is not used"
            )
        return text

    return folder.read(name, checked)


def _base_of(
    folder: StoreFolder, patch: PatchManifest, target: Manifest | PatchManifest, notice: WeightVersion
) -> Stored:
    """The base of a patch in a chain that leads to `target`. Raises WeightsError where it cannot be one."""
    base = patch.base
    try:
        text = _text(folder, base.name, base.manifest_sha256)
    except FileNotFoundError:
        raise WeightsError(
            f"weights {notice.name} of version {notice.version} are stored as changes since {base.name}, which is not "
            "there any more; load another version, or have the trainer publish this one again"
        ) from None
    manifest = parse_stored(text, base.name)
    if manifest.digest != base.pair.digest:
        raise WeightsError(
            f"weights {base.name} are {manifest.digest}, the patch of {base.pair} is not made for them and is not used"
        )
    table = {tensor.spec.name: tensor.spec for tensor in manifest.tensors}
    if table != {tensor.spec.name: tensor.spec for tensor in target.tensors}:
        raise WeightsError(
            f"weights {base.name} have other tensors than {notice.name}, which is stored as changes since them; they "
            "are not used"
        )
    return Stored(pair=base.pair, name=base.name, manifest=manifest, text=text)


def _is_there(path: Path, shard: Shard) -> bool:
    """Whether an earlier download is whole."""
    try:
        with path.open("rb") as source:
            check_shard(source, shard)
    except (OSError, WeightsError):
        return False
    return True
