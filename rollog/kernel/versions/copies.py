"""A reader's own copy of a version, in full on this machine, which patches take on to later ones.

| state | in the directory | `pair` |
| --- | --- | --- |
| empty | nothing, or shards that were fetched before a fetch failed, and unfinished files | None |
| whole | a manifest and its shards | that version |
| between two versions | shards into which patches are written, and the files of these | None |

A copy of version 14 is asked for 18. Of 18, 17, 16 and 15 the manifests are read, which name each other; the last one
names 14 as its base. Four patches are fetched, the sizes and headers of all that is in them are looked at, and the
manifest of 14 is deleted. Then shards get the names of 18, patches are written into them leaf by leaf, each leaf is
compared, and the manifest of 18 is written. Without 14, or where the chain leads elsewhere, the full form is fetched
first, into the files of the shards before it where sizes are the same.
What fails before the manifest is deleted leaves the copy as it was. What fails after it, and a process that dies there,
leaves shards of no version, and the next one reads the full form into them. A way back from there would be a file of
decoded values beside the shards: with it a version took a third longer to come, each time.
"""

from __future__ import annotations

import errno
import re
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import clear_frames
from typing import TYPE_CHECKING

from rollog.kernel.atomic_write import new_partial_name, partial_file, partial_name
from rollog.kernel.disk_room import free_bytes
from rollog.kernel.errors import WeightsError
from rollog.kernel.logs import get_logger
from rollog.kernel.versions.applying import PatchedShards
from rollog.kernel.versions.chains import VersionPair
from rollog.kernel.versions.files import check_files, read_manifest, weights_files
from rollog.kernel.versions.identity import by_name
from rollog.kernel.versions.manifest import (
    Manifest,
    Shard,
    manifest_name,
    no_sha256,
    shard_name,
    shard_name_of,
    version_of,
)
from rollog.kernel.versions.mapped_shards import MappedShards, ShardCut
from rollog.kernel.versions.patch_manifest import PatchManifest
from rollog.kernel.versions.reading import (
    Chain,
    SpareFile,
    chain_to,
    download_full,
    download_patch,
    noticed_form,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from rollog.kernel.store_folder import StoreFolder
    from rollog.kernel.versions.reading import Stored
    from schemas.weights import WeightVersion


_log = get_logger("weights")
_shard_suffix = ".safetensors"
_earlier_name = re.compile(r"v[0-9]{6,9}-[0-9a-f]{16}\.(manifest\.next|values)")
"""What an earlier rollog had beside a copy; nothing is made of it."""
_no_room = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_patterns = (manifest_name, shard_name, _earlier_name, partial_name)


class NoRoomForCopy(WeightsError):
    """A version does not fit to where the copy is."""


class VersionCopy:
    """One version in a directory to which nobody else writes meanwhile. For one thread.

    What is in the directory says what the copy is, so that it can change hands. `free_bytes` tells the room there.
    """

    def __init__(self, directory: Path, *, free_bytes: Callable[[Path], int] = free_bytes) -> None:
        self.directory = directory
        self.free_bytes = free_bytes
        self._name = ""
        self._pair: VersionPair | None = None
        self._manifest: Manifest | None = None
        self._given: VersionPair | None = None
        self._knows_directory = False
        self._shards = MappedShards(directory)

    @property
    def pair(self) -> VersionPair | None:
        """The version that is here, None where none is whole."""
        self._look()
        return self._pair

    @property
    def path(self) -> Path:
        """Of the manifest of the version that is here."""
        assert self.pair is not None
        return self.directory / self._name

    @property
    def _here(self) -> Manifest:
        """What the manifest of the version that is here says; it is read once."""
        self._look()
        assert self._manifest is not None
        return self._manifest

    def has(self, wanted: VersionPair) -> bool:
        """Whether a version is here, without a change to anything.

        The files are read through where this object has made or seen none of the copies in this directory, which may
        have been left by anybody, and for who asks for the same version again: it may have failed to load it.
        """
        if self.pair != wanted:
            return False
        if wanted == self._given or not self._knows_directory:
            try:
                check_files(self.path)
            except WeightsError:
                return False
        self._give(wanted)
        return True

    def bring(self, folder: StoreFolder, notice: WeightVersion) -> Path:
        """Have exactly the version of a notice here; returns the path of its manifest.

        Raises WeightsError, and NoRoomForCopy where files cannot be written here.
        """
        with _naming_no_room(self.directory):
            return self._bring(folder, notice)

    def _bring(self, folder: StoreFolder, notice: WeightVersion) -> Path:
        wanted = VersionPair(notice.version, notice.sha256)
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.has(wanted):
            return self.path
        if self.pair == wanted:
            self.invalidate()
        chain = self._same_base(folder, notice) or chain_to(folder, notice, self.pair)
        spare = self._set_aside(self._keep_only(chain), chain)
        self._shards.forget_deleted()  # files that are mapped take room as long as they are
        try:
            self._require_room(chain, spare)
            if chain.full is not None:
                download_full(folder, chain.full, self.directory, spare)
            for patch in chain.patches:
                download_patch(folder, patch, self.directory)
            if chain.patches:
                self._patch(chain.patches, notice)
        except BaseException as error:
            # Others may delete the files now. Who keeps the error shall not keep them in memory.
            spare.clear()
            self._shards.forget()
            _clear_frames(error)
            raise
        self._look()
        self._give(wanted)
        return self.path

    def _same_base(self, folder: StoreFolder, notice: WeightVersion) -> Chain | None:
        """A patch alone, where it leaves every tensor that it does not store whole as it is here.

        So a version of an adapter follows the one before: both are stored beside version 0.
        """
        if self.pair is None or notice.base is None or notice.base.version >= self.pair.version:
            return None
        patch = noticed_form(folder, notice).manifest
        here = by_name(self._here.tensors)
        assert isinstance(patch, PatchManifest)
        if {tensor.spec for tensor in patch.tensors} != {tensor.spec for tensor in here.values()}:
            return None
        if all(
            each.form == "dense" or (each.form == "same" and here[each.tensor.spec.name] == each.tensor)
            for each in patch.pieces
        ):
            return Chain(full=None, patches=(patch,))
        return None

    def discard(self) -> None:
        """Delete what is here."""
        self._shards.forget()
        for path in self._files():
            path.unlink(missing_ok=True)

    def invalidate(self) -> None:
        """Have no version here any more. Shards stay, for the next one to be read into them.

        An engine that has them mapped would keep the memory of deleted ones.
        """
        for path in self._files():
            if path.suffix != _shard_suffix:
                path.unlink(missing_ok=True)

    def _give(self, pair: VersionPair) -> None:
        self._given, self._knows_directory = pair, True

    def _look(self) -> None:
        names = [path.name for path in self._files() if manifest_name.fullmatch(path.name)]
        if names == [self._name]:
            return
        self._shards.forget_deleted()  # others may have made the copy anew
        self._name, self._pair, self._manifest = "", None, None
        if len(names) == 1:
            with suppress(WeightsError):
                self._set(names[0], read_manifest(self.directory / names[0])[0])

    def _set(self, name: str, manifest: Manifest) -> None:
        self._name, self._manifest = name, manifest
        self._pair = VersionPair(version_of(name), manifest.digest)

    def _keep_only(self, chain: Chain) -> list[Path]:
        """Delete what leads nowhere, a copy too that the chain does not begin with, but for its tensors.

        Returns the files of these, and of fetches that ended early, under names of unfinished ones.
        """
        name = self._name if chain.full is None else chain.full.name
        full = self._here.shards if chain.full is None else _shards_of(chain.full)
        kept = {name, *(shard.name for shard in full)}
        kept.update(shard.name for patch in chain.patches for shard in patch.shards)
        left = []
        for path in self._files():
            if path.name in kept:
                continue
            if partial_name.fullmatch(path.name):
                left.append(path)
            elif path.suffix == _shard_suffix:
                left.append(path.rename(self.directory / new_partial_name()))
            else:
                path.unlink(missing_ok=True)
        return left

    def _set_aside(self, files: Sequence[Path], chain: Chain) -> dict[str, SpareFile]:
        """Those of the sizes of missing shards of the full form, by the names of these; the others are deleted."""
        missing = [shard for shard in _shards_of(chain.full) if not (self.directory / shard.name).exists()]
        spare: dict[str, SpareFile] = {}
        for path in files:
            size = path.stat().st_size
            fitting = [each.name for each in missing if each.num_bytes == size and each.name not in spare]
            try:
                if fitting:
                    spare[fitting[0]] = SpareFile(path, self._shards.bytes_of(path).data)
                    continue
            except OSError as error:
                _log.info("a file is not overwritten", directory=str(self.directory), error=str(error))
            path.unlink()
        return spare

    def _require_room(self, chain: Chain, spare: Collection[str]) -> None:
        files = {shard.name: shard.num_bytes for patch in chain.patches for shard in patch.shards}
        files |= {shard.name: shard.num_bytes for shard in _shards_of(chain.full) if shard.name not in spare}
        needed = sum(size for name, size in files.items() if not (self.directory / name).exists())
        if needed > (free := self.free_bytes(self.directory)):
            raise NoRoomForCopy(
                f"{self.directory} has room for {free} bytes, and {needed} are needed for a version of weights: make "
                "room there"
            )

    def _patch(self, patches: tuple[PatchManifest, ...], notice: WeightVersion) -> None:
        manifest = self._here
        try:
            patched = PatchedShards(self._shards, manifest, patches, self.directory)
        except ShardCut:
            self.discard()
            raise
        new = _patched(manifest, patches[-1], notice.name)
        whole = {shard.name for shard in new.shards}
        with partial_file(self.directory) as unfinished:
            unfinished.write_bytes(new.encoded())
            # From here on the shards are no version, and nobody must take them for one.
            self.path.unlink()
            try:
                for old_shard, new_shard in zip(manifest.shards, new.shards, strict=True):
                    (self.directory / old_shard.name).rename(self.directory / new_shard.name)
                patched.write()
                unfinished.replace(self.directory / notice.name)
                whole.add(notice.name)
                self._set(notice.name, new)
            finally:
                # Without the manifest, shards to read another version into: a patch may be at fault.
                for path in self._files():
                    if path.name not in whole:
                        path.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        """What is here of versions, manifests first: what is half removed has none."""
        if not self.directory.is_dir():
            return
        paths = sorted(self.directory.iterdir(), key=lambda path: (path.suffix != ".manifest", path.name))
        for path in paths:
            if any(pattern.fullmatch(path.name) for pattern in _patterns):
                yield path


def _clear_frames(error: BaseException | None) -> None:
    """Let go of what the functions had in hand that an error came through, its causes too."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _shards_of(full: Stored | None) -> Sequence[Shard]:
    if full is None:
        return ()
    assert isinstance(full.manifest, Manifest)
    return full.manifest.shards


@contextmanager
def _naming_no_room(directory: Path) -> Iterator[None]:
    """Errors that only writing to a directory has, raised as they are or as the cause of a WeightsError."""
    try:
        yield
    except (WeightsError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(error, NoRoomForCopy) or not isinstance(cause, OSError) or cause.errno not in _no_room:
            raise
        raise NoRoomForCopy(f"{directory} takes no version of weights: {cause}; make room there") from error


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
        ),
        patch.adapter,
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
