"""A reader's own copy of a version, in full on this disk, which patches take on to later ones.

| state | in the directory | `pair` |
| --- | --- | --- |
| empty | nothing, or shards that were fetched before a fetch failed | None |
| whole | a manifest and its shards | that version |
| between two versions | shards without a manifest, while patches are written into them | None |

A copy of version 14 is asked for 18. Of 18, 17, 16 and 15 the manifests are read, which name each other; the last one
names 14 as its base. Four patches are fetched, the manifest of 14 is deleted, each tensor is patched four times at once
and compared, shards get the names of 18, and its manifest is written. Without 14, or where the chain leads elsewhere,
the full form is fetched first. What fails before the manifest is deleted leaves the copy as it was; what fails after
it leaves nothing.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.disk_room import free_bytes
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.applying import apply_patches
from rollog.kernel.versions.chains import VersionPair
from rollog.kernel.versions.files import check_files, read_manifest, weights_files
from rollog.kernel.versions.manifest import (
    Manifest,
    Shard,
    manifest_name,
    no_sha256,
    shard_name,
    shard_name_of,
    stem_of,
)
from rollog.kernel.versions.reading import chain_to, download_full, download_patch, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rollog.kernel.store_folder import StoreFolder
    from rollog.kernel.versions.patch_manifest import PatchManifest
    from rollog.kernel.versions.reading import Chain
    from schemas.weights import WeightVersion


class VersionCopy:
    """One version in a directory in which nobody else writes. For one thread.

    `free_bytes` tells the room on the disk of a directory.
    """

    def __init__(self, directory: Path, *, free_bytes: Callable[[Path], int] = free_bytes) -> None:
        self.directory = directory
        self.free_bytes = free_bytes
        self.pair: VersionPair | None = None
        self._name = ""

    @property
    def path(self) -> Path:
        """Of the manifest of the version that is here."""
        assert self.pair is not None
        return self.directory / self._name

    def bring(self, folder: StoreFolder, notice: WeightVersion) -> Path:
        """Have exactly the version of a notice here; returns the path of its manifest. Raises WeightsError."""
        self._discard_altered(notice)
        self.directory.mkdir(parents=True, exist_ok=True)
        chain = chain_to(folder, notice, self.pair)
        self._keep_only(chain)
        self._require_room(chain)
        if chain.full is not None:
            path = download_full(folder, chain.full, self.directory)
            self.pair, self._name = chain.full.pair, path.name
        if chain.patches:
            for patch in chain.patches:
                download_patch(folder, patch, self.directory)
            self._patch(chain.patches, notice)
        return self.path

    def discard(self) -> None:
        """Delete what is here."""
        self.pair = None
        for path in self._files():
            path.unlink(missing_ok=True)

    def _discard_altered(self, notice: WeightVersion) -> None:
        """Whoever asks for the same version again may have failed to load it."""
        if self.pair == VersionPair(notice.version, notice.sha256):
            try:
                check_files(self.path)
            except WeightsError:
                self.discard()

    def _keep_only(self, chain: Chain) -> None:
        """Delete what leads nowhere, a copy too that the chain does not begin with."""
        names = {shard.name for patch in chain.patches for shard in patch.shards}
        if chain.full is not None:
            self.pair = None
            names.add(chain.full.name)
        else:
            names.add(self._name)
        stems = {stem_of(name) for name in names}
        for path in self._files():
            if stem_of(path.name) not in stems:
                path.unlink(missing_ok=True)

    def _require_room(self, chain: Chain) -> None:
        files = {shard.name: shard.num_bytes for patch in chain.patches for shard in patch.shards}
        if chain.full is not None:
            assert isinstance(chain.full.manifest, Manifest)
            files |= {shard.name: shard.num_bytes for shard in chain.full.manifest.shards}
        needed = sum(size for name, size in files.items() if not (self.directory / name).exists())
        if needed > (free := self.free_bytes(self.directory)):
            raise WeightsError(
                f"{self.directory} has room for {free} bytes, and {needed} are needed for a version of weights: make "
                "room there"
            )

    def _patch(self, patches: tuple[PatchManifest, ...], notice: WeightVersion) -> None:
        manifest, _ = read_manifest(self.path)
        # From here on the shards are no version, and nobody must take them for one.
        self.path.unlink()
        self.pair = None
        reach(CrashPoint.COPY_BETWEEN_VERSIONS)
        try:
            apply_patches(self.directory, manifest, patches)
        except BaseException:
            self.discard()
            raise
        patched = _patched(manifest, patches[-1], notice.name)
        for old, new in zip(manifest.shards, patched.shards, strict=True):
            (self.directory / old.name).rename(self.directory / new.name)
        write_manifest(self.directory, notice.name, patched.encoded())
        self.pair, self._name = VersionPair(notice.version, notice.sha256), notice.name
        for shard in (shard for patch in patches for shard in patch.shards):
            (self.directory / shard.name).unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        if not self.directory.is_dir():
            return
        for path in sorted(self.directory.iterdir()):
            if manifest_name.fullmatch(path.name) or shard_name.fullmatch(path.name):
                yield path


def _patched(manifest: Manifest, patch: PatchManifest, name: str) -> Manifest:
    """The full form that shards are after a patch."""
    digests = {tensor.spec.name: tensor for tensor in patch.tensors}
    return Manifest(
        tuple(
            Shard(
                name=shard_name_of(name, number),
                num_bytes=shard.num_bytes,
                sha256=no_sha256,
                tensors=tuple(digests[tensor.spec.name] for tensor in shard.tensors),
            )
            for number, shard in enumerate(manifest.shards)
        )
    )


def rebuilt(folder: StoreFolder, notice: WeightVersion, directory: Path) -> Path:
    """A version that is stored as a patch, in full in a directory that others may use, too. Raises WeightsError."""
    target = directory / notice.name
    try:
        if read_manifest(target)[0].digest == notice.sha256:
            check_files(target)
            return target
    except WeightsError:
        pass  # it is not there, or not whole
    directory.mkdir(parents=True, exist_ok=True)
    # Patches are written into shards where nobody else looks: under their names stand only whole ones.
    with TemporaryDirectory(prefix="rollog-", dir=directory) as own:
        path = VersionCopy(Path(own)).bring(folder, notice)
        for file in (*weights_files(path), path):
            file.replace(directory / file.name)
    return target
