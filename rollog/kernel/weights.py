"""The weights store: published policy versions, written once.

The store is any fsspec address. A version has one of these forms there:

    v000007-<attempt>.manifest         with v000007-<attempt>-00.safetensors, -01 ... (`rollog.kernel.versions`)
    v000007-<attempt>.manifest         with v000007-<attempt>-00.patch, -01 ...: what changed since its base
    v000007-<sha256>.safetensors       one file: runs that began before there were manifests

`attempt` is a random number: nobody writes under a name that another has used. A manifest, or the one file, appears
under its name only when all of its version is durable: on a local disk it is written beside, synced and renamed;
elsewhere it is uploaded by the one call that makes objects visible. Readers know a version by its notice, never by a
listing, and trust files only after every byte of them agrees with the notice.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from rollog.kernel.addresses import public_address
from rollog.kernel.atomic_write import make_durable, new_partial_name, partial_file, partial_name, sync_path
from rollog.kernel.disk_room import free_bytes, is_full
from rollog.kernel.errors import RollogError, WeightsError, WeightsStoreSilent
from rollog.kernel.logs import get_logger
from rollog.kernel.store_address import is_silence, open_filesystem, protocols, remedy
from rollog.kernel.store_folder import StoreFolder
from rollog.kernel.versions.belonging import belonging
from rollog.kernel.versions.copies import rebuilt
from rollog.kernel.versions.manifest import (
    manifest_format,
    manifest_name,
    shard_name,
    version_of,
)
from rollog.kernel.versions.notices import bad_name, check_notice, file_name, weights_name
from rollog.kernel.versions.publishing import publish_full, publish_patch
from rollog.kernel.versions.reading import (
    all_shards,
    check_noticed,
    download_full,
    noticed_form,
    stored_patch,
)
from rollog.kernel.versions.shards import shard_bytes
from rollog.kernel.versions.single_file import (
    SingleFileSink,
    copy_noticed,
    digest_of_file,
    digest_of_stream,
)
from rollog.kernel.versions.targets import DiskFiles, ElsewhereFiles
from schemas.weights import WeightVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rollog.kernel.versions.adapter import Adapter
    from rollog.kernel.versions.copies import VersionCopy
    from rollog.kernel.versions.identity import TensorDigest
    from rollog.kernel.versions.lane import Lane
    from rollog.kernel.versions.patch_shards import PatchSink
    from rollog.kernel.versions.shards import VersionFiles
    from rollog.kernel.versions.tensors import Export

_first_pause_seconds = 0.5
_longest_pause_seconds = 5.0
_log = get_logger("weights")
_Result = TypeVar("_Result")


def _is_complete(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (file_name, manifest_name, shard_name))


class WeightsStore:
    """Published weights of one run under `uri` (`file:///...`, a plain path, `s3://...`, `memory://...`).

    `filesystem`, an fsspec one with its root, stands in place of what the address leads to. While a store elsewhere
    does not answer, `publish` and `fetch` try again for `wait_seconds`, or until `no_longer` is set. `lane` is where
    files of a store elsewhere are beside it, written by what publishes and read by `bring`. Raises ConfigError
    when the address cannot be used at all, WeightsStoreSilent where it does not answer, and WeightsError for everything
    else about one file.
    """

    def __init__(
        self,
        uri: str,
        *,
        filesystem: tuple[Any, str] | None = None,
        wait_seconds: float = 0.0,
        no_longer: threading.Event | None = None,
        lane: Lane | None = None,
    ) -> None:
        self.uri = uri
        self._wait_seconds = wait_seconds
        self._no_longer = no_longer or threading.Event()
        self.public_uri = public_address(uri)
        self._fs, self._root = filesystem or open_filesystem(uri)
        self._folder = StoreFolder(self._fs, self._root)
        self.is_local = "file" in protocols(self._fs)
        """Whether files are read in place, on this disk."""
        # What is on this disk is in this machine's memory once it was written.
        self._lane = None if self.is_local else lane

    def try_writing(self) -> None:
        """Write and delete a small file, as a partial one; on this disk no directory is made for it.

        Raises WeightsError.
        """
        name = new_partial_name()
        try:
            if self.is_local:
                place = Path(self._root)
                while not place.exists():
                    place = place.parent
                self._try_directory(place)
                return
            self._fs.pipe_file(self._folder.path(name), b"rollog")
            self._fs.rm_file(self._folder.path(name))
        except WeightsError:
            raise
        except Exception as error:  # object stores raise errors of their own libraries
            kind = WeightsStoreSilent if is_silence(error) else WeightsError
            raise kind(
                f"the store {self.public_uri} cannot be written ({type(error).__name__}: {error}); {remedy(error)}"
            ) from error

    def _try_directory(self, place: Path) -> None:
        try:
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:  # its file is one that nobody knows
            raise self._unwritable(error.strerror or type(error).__name__) from error

    def _unwritable(self, reason: str) -> WeightsError:
        return WeightsError(
            f"the store {self.public_uri} cannot be written ({reason}); check that it exists, and that this user may "
            "write to it"
        )

    def publish_tensors(
        self,
        version: int,
        export: Export,
        *,
        adapter: Adapter | None = None,
        most_bytes: int = shard_bytes,
    ) -> WeightVersion:
        """Store one version as shards of at most `most_bytes` and a manifest; when this returns, it is durable.

        Its sha256 is the content digest. Memory is taken for one tensor, for a store elsewhere for two shards. Raises
        WeightsError, after which what was written is deleted as far as possible, and EngineError for a NaN.
        """
        return publish_full(self._new_files(), version, export, adapter=adapter, most_bytes=most_bytes)

    def publish_patch(
        self,
        version: int,
        base: WeightVersion,
        write: Callable[[PatchSink], None],
        *,
        adapter: Adapter | None = None,
        most_bytes: int = shard_bytes,
    ) -> WeightVersion:
        """Store what changed since `base`, a manifest of this store, as `write` hands it over; otherwise the same."""
        return publish_patch(self._new_files(), version, base, write, adapter=adapter, most_bytes=most_bytes)

    def tensor_digests(self, notice: WeightVersion) -> list[TensorDigest]:
        """The tensors of a version that is a manifest, as that tells them. Raises WeightsError."""
        check_notice(notice)
        return self._patiently(
            lambda: self._found(notice, lambda: noticed_form(self._folder, notice).manifest.tensors)
        )

    def publish(self, version: int, data: bytes | Export) -> WeightVersion:
        """Store one version as one file; when this returns, the file is durable under its final name.

        Publishing the same bytes again under the same version changes nothing.
        """
        what = f"weights of version {version} could not be written to"
        if self.is_local:
            with self._naming_version(version):
                return self._write(version, data)
        if isinstance(data, bytes):
            return self._patiently(lambda: self._translated(what, lambda: self._upload(version, data)))
        with tempfile.NamedTemporaryFile(prefix="rollog-weights-") as spooled:
            sink = self._single_file(version, spooled.file)
            data(sink)
            with self._naming_version(version):
                spooled.flush()
            path, notice = Path(spooled.name), _notice(version, sink.sha256, sink.num_bytes)
            return self._patiently(lambda: self._translated(what, lambda: self._upload_noticed(notice, path)))

    def fetch(self, notice: WeightVersion, directory: Path) -> Path:
        """Local path of exactly the weights that `notice` names: of the one file, or of a manifest beside its shards.

        For a store on this disk these are the stored files themselves; otherwise downloads in `directory`, and there is
        what a patch makes, too.
        """
        check_notice(notice)
        if self.is_local and notice.base is None:
            self._found(notice, lambda: self._verify(notice))
            return Path(self._folder.path(notice.name))
        return self._patiently(lambda: self._found(notice, lambda: self._download(notice, directory)))

    def bring(self, notice: WeightVersion, copy: VersionCopy) -> Path:
        """As `fetch`, for a reader that takes its own copy from version to version.

        A version that is one file, or that a store on this disk has in full, leaves no copy.
        """
        if notice.format == manifest_format and not (self.is_local and notice.base is None):
            check_notice(notice)
            folder = replace(self._folder, nearer=self._lane)
            return self._patiently(lambda: self._found(notice, lambda: copy.bring(folder, notice)))
        copy.discard()
        return self.fetch(notice, copy.directory)

    def check(self, notice: WeightVersion) -> None:
        """Read all files of a version through, keeping nothing. Raises WeightsError for what is not as noticed.

        Of shards the sha256 is compared, too, which says nothing more of the tensors. A patch is rebuilt for it, in a
        temporary directory.
        """
        check_notice(notice)
        if notice.base is not None:
            with tempfile.TemporaryDirectory(prefix="rollog-weights-") as directory:
                self.fetch(notice, Path(directory))
            return
        self._found(notice, lambda: self._verify(notice, with_sha256=True))

    def file_names(self, notice: WeightVersion) -> list[str]:
        """Names of all files of one form of a version, its own the last. Raises WeightsError for a bad manifest.

        Those of what a patch is based on are not among them.
        """
        check_notice(notice)
        if notice.format != manifest_format:
            return [notice.name]
        form = self._found(notice, lambda: noticed_form(self._folder, notice))
        return [*(shard.name for shard in form.manifest.shards), notice.name]

    def stored_files(self, notice: WeightVersion, directory: Path) -> list[Path]:
        """Local paths of the files in `file_names`, as they are stored, each compared with its digest.

        For a store on this disk these are the stored files themselves; otherwise downloads in `directory`.
        """
        if notice.base is None:
            path = self.fetch(notice, directory)
            return [path.with_name(name) for name in self.file_names(notice)]
        check_notice(notice)
        return self._patiently(
            lambda: self._found(notice, lambda: stored_patch(self._folder, notice, directory))
        )

    def stop_waiting(self) -> None:
        """From now on a store that does not answer is not waited for; what waits ends. For another thread to call."""
        self._no_longer.set()

    def has(self, notice: WeightVersion) -> bool:
        """Whether all files that make a version are there, with their lengths. Raises WeightsStoreSilent."""
        check_notice(notice)
        what = f"weights {notice.name} could not be looked for in"
        try:
            return self._translated(what, lambda: self._has(notice))
        except WeightsStoreSilent:
            raise
        except WeightsError as error:
            _log.warning("weights cannot be used", name=notice.name, error=str(error))
            return False

    def digest(self, name: str) -> tuple[str, int]:
        """The sha256 and length in bytes of a complete file as it is stored; nothing of it is kept."""
        if not _is_complete(name):
            raise WeightsError(bad_name(name))
        return self._translated(
            f"weights {name} could not be read from", lambda: self._digest(self._folder.path(name))
        )

    def names(self) -> list[str]:
        """Names of weights files, manifests and shards, by version; a shard may still be written.

        Raises WeightsError for a store that cannot be listed.
        """
        return sorted(filter(_is_complete, self._listed()))

    def partial_names(self) -> list[str]:
        """Names of files whose writer died before it was done. Raises WeightsError."""
        return sorted(filter(partial_name.fullmatch, self._listed()))

    def belonging(self, named: Iterable[str]) -> list[str]:
        """Names of files that belong to `named`, the names in notices: they themselves, and shards of manifests."""
        return belonging(self.names(), set(named))

    def orphans(self, named: Iterable[str]) -> list[str]:
        """Names of files that belong to none of `named`, the names in committed notices."""
        own = set(self.belonging(named))
        return [name for name in self.names() if name not in own]

    def delete(self, name: str) -> None:
        """Remove one complete or partial file; a missing one is fine. Raises WeightsError."""
        if not (_is_complete(name) or partial_name.fullmatch(name)):
            raise WeightsError(bad_name(name))
        self._translated(f"weights {name} could not be deleted in", lambda: self._folder.remove(name))

    @property
    def filesystem(self) -> tuple[Any, str]:
        """The fsspec filesystem of the store and its root there, for what stands beside the weights."""
        return self._fs, self._root.rstrip("/")

    @property
    def directory(self) -> Path | None:
        """Where the files are on this disk; None for a store elsewhere."""
        return Path(self._root) if self.is_local else None

    @property
    def num_bytes(self) -> int:
        """Bytes of all files of versions, unfinished ones too. What goes away meanwhile does not count."""
        return self._folder.num_bytes([*self.names(), *self.partial_names()])

    def remove_if_empty(self) -> None:
        """Remove the directory of a store on this disk where nothing is left in it."""
        if self.is_local:
            with suppress(OSError):  # it is not empty, or there is none
                Path(self._root).rmdir()

    def _listed(self) -> list[str]:
        return self._translated("the weights cannot be listed in", self._folder.names)

    def _has(self, notice: WeightVersion) -> bool:
        path = self._folder.path(notice.name)
        if not self._fs.exists(path):
            return False
        if notice.format != manifest_format:
            return bool(self._fs.size(path) == notice.num_bytes)
        paths = [
            (self._folder.path(shard.name), shard.num_bytes) for shard in all_shards(self._folder, notice)
        ]
        return all(self._fs.exists(path) and self._fs.size(path) == size for path, size in paths)

    def _digest(self, path: str) -> tuple[str, int]:
        with self._fs.open(path, "rb") as source:
            return digest_of_stream(source)

    def _found(self, notice: WeightVersion, read: Callable[[], _Result]) -> _Result:
        try:
            return self._translated(f"weights {notice.name} could not be read from", read)
        except WeightsError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            raise WeightsError(
                f"weights {notice.name} of version {notice.version} are not in {self.public_uri}; "
                "check that every role uses the same store and that the version was not deleted"
            ) from error.__cause__

    def _translated(self, what: str, call: Callable[[], _Result]) -> _Result:
        """The outcome of a call of the filesystem; its errors as ours, with a remedy."""
        try:
            return call()
        except RollogError:
            raise
        except Exception as error:  # object stores raise errors of their own libraries
            kind = WeightsStoreSilent if not self.is_local and is_silence(error) else WeightsError
            raise kind(
                f"{what} {self.public_uri} ({type(error).__name__}: {error}); {remedy(error)}"
            ) from error

    def _patiently(self, call: Callable[[], _Result]) -> _Result:
        """The outcome of a call that is made again while the store does not answer, for the time it has."""
        deadline, pause = time.monotonic() + self._wait_seconds, _first_pause_seconds
        while True:
            try:
                return call()
            except WeightsStoreSilent as error:
                left = deadline - time.monotonic()
                if left <= 0 or self._no_longer.is_set():
                    raise
                _log.warning("the weights store is waited for", error=str(error), seconds_left=round(left, 1))
            self._no_longer.wait(min(pause, max(left, 0)))
            pause = min(2 * pause, _longest_pause_seconds)

    @contextmanager
    def _naming_version(self, version: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            check = "check that the store exists, is writable and has room"
            if is_full(error):
                check = f"make room there: {free_bytes(self._root)} bytes are free"
            raise WeightsError(
                f"weights of version {version} could not be written to {self.public_uri}: {error}; {check}"
            ) from error

    def _new_files(self) -> VersionFiles:
        if self.is_local:
            return DiskFiles(Path(self._root), self._naming_version)
        files = ElsewhereFiles(self._upload_file, self.delete)
        return files if self._lane is None else self._lane.beside(files)

    def _upload_file(self, name: str, data: bytes) -> None:
        def upload() -> None:
            self._folder.make()
            self._fs.pipe_file(self._folder.path(name), data)
            self._fs.invalidate_cache()

        what = f"weights of version {version_of(name)} could not be written to"
        self._patiently(lambda: self._translated(what, upload))

    def _write(self, version: int, data: bytes | Export) -> WeightVersion:
        root = Path(self._root)
        make_durable(root)
        with partial_file(root) as partial:
            if isinstance(data, bytes):
                notice = _write_bytes(version, data, partial)
            else:
                notice = self._write_export(version, data, partial)
            if (root / notice.name).exists():
                self._verify(notice)
            else:
                partial.replace(root / notice.name)
        sync_path(root)
        return notice

    def _write_export(self, version: int, export: Export, path: Path) -> WeightVersion:
        """Write and sync a file while its tensors are gathered."""
        with path.open("wb") as target:
            sink = self._single_file(version, target)
            export(sink)
            target.flush()
            os.fsync(target.fileno())
        return _notice(version, sink.sha256, sink.num_bytes)

    def _single_file(self, version: int, target: IO[bytes]) -> SingleFileSink:
        """What writes to a file of this disk. Its errors are ours at once: whoever exports knows nothing of files."""

        def write(data: memoryview) -> None:
            with self._naming_version(version):
                target.write(data)

        return SingleFileSink(write)

    def _upload(self, version: int, data: bytes) -> WeightVersion:
        notice = _notice(version, hashlib.sha256(data).hexdigest(), len(data))
        return self._upload_noticed(notice, data)

    def _upload_noticed(self, notice: WeightVersion, data: bytes | Path) -> WeightVersion:
        path = self._folder.path(notice.name)
        if self._fs.exists(path):
            self._verify(notice)
            return notice
        self._folder.make()
        if isinstance(data, bytes):
            self._fs.pipe_file(path, data)
        else:
            self._fs.put_file(str(data), path)
        self._fs.invalidate_cache()
        return notice

    def _download(self, notice: WeightVersion, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        if notice.format == manifest_format:
            if notice.base is not None:
                return rebuilt(self._folder, notice, directory)
            return download_full(self._folder, noticed_form(self._folder, notice), directory)
        target = directory / notice.name
        if target.is_file() and digest_of_file(target) == (notice.sha256, notice.num_bytes):
            return target
        with partial_file(directory) as partial:
            with self._fs.open(self._folder.path(notice.name), "rb") as source, partial.open("wb") as sink:
                copy_noticed(source, sink, notice)
            partial.replace(target)
        return target

    def _verify(self, notice: WeightVersion, *, with_sha256: bool = False) -> None:
        if notice.format == manifest_format:
            check_noticed(self._folder, notice, with_sha256=with_sha256)
            return
        with self._fs.open(self._folder.path(notice.name), "rb") as source:
            copy_noticed(source, None, notice)


def _notice(version: int, sha256: str, num_bytes: int) -> WeightVersion:
    name = weights_name(version, sha256)
    if not file_name.fullmatch(name):
        raise WeightsError(bad_name(name))
    return WeightVersion(version=version, sha256=sha256, name=name, num_bytes=num_bytes)


def _write_bytes(version: int, data: bytes, path: Path) -> WeightVersion:
    """Write and sync a file. Its digest is taken meanwhile: each takes a second for a billion bytes."""
    with path.open("wb") as target, ThreadPoolExecutor(1, thread_name_prefix="digest") as other:
        digest = other.submit(hashlib.sha256, data)
        target.write(data)
        target.flush()
        os.fsync(target.fileno())
        return _notice(version, digest.result().hexdigest(), len(data))
