"""Reading a version that is stored as a manifest and shards: from any folder of a store, each byte checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.atomic_write import partial_file
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.checking import check_shard
from rollog.kernel.versions.manifest import manifest_sha256, most_manifest_bytes, parse_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.store_folder import StoreFolder
    from rollog.kernel.versions.manifest import Manifest, Shard
    from schemas.weights import WeightVersion


def noticed_manifest(folder: StoreFolder, notice: WeightVersion) -> tuple[Manifest, bytes]:
    """The manifest of a notice, and its text. Raises WeightsError where it is not the noticed one."""
    with folder.filesystem.open(folder.path(notice.name), "rb") as source:
        text: bytes = source.read(most_manifest_bytes + 1)
    found = manifest_sha256(text)
    if found != notice.manifest_sha256:
        raise WeightsError(
            f"weights {notice.name} have sha256 {found} instead of {notice.manifest_sha256}; the manifest was altered "
            "and is not used"
        )
    manifest = parse_manifest(text, notice.name)
    if (manifest.digest, manifest.num_bytes) != (notice.sha256, notice.num_bytes):
        raise WeightsError(
            f"weights {notice.name} are {manifest.digest} with {manifest.num_bytes} bytes, the notice of version "
            f"{notice.version} is of {notice.sha256} with {notice.num_bytes}; they are not used"
        )
    return manifest, text


def check_noticed(folder: StoreFolder, notice: WeightVersion, *, with_sha256: bool = False) -> None:
    """Read all shards of a version through, keeping nothing. Raises WeightsError."""
    for shard in noticed_manifest(folder, notice)[0].shards:
        with folder.filesystem.open(folder.path(shard.name), "rb") as source:
            check_shard(source, shard, with_sha256=with_sha256)


def download_noticed(folder: StoreFolder, notice: WeightVersion, directory: Path) -> Path:
    """Copy a version into an existing directory; returns the path of the manifest there. Raises WeightsError."""
    manifest, text = noticed_manifest(folder, notice)
    for shard in manifest.shards:
        if not _is_there(directory / shard.name, shard):
            with partial_file(directory) as partial:
                with (
                    folder.filesystem.open(folder.path(shard.name), "rb") as source,
                    partial.open("wb") as sink,
                ):
                    check_shard(source, shard, sink)
                partial.replace(directory / shard.name)
    target = directory / notice.name
    with partial_file(directory) as partial:
        partial.write_bytes(text)
        partial.replace(target)
    return target


def _is_there(path: Path, shard: Shard) -> bool:
    """Whether an earlier download is whole."""
    try:
        with path.open("rb") as source:
            check_shard(source, shard)
    except (OSError, WeightsError):
        return False
    return True
