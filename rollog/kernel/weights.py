"""The weights store: published policy versions as files, written once and named after their content.

The store is any fsspec address. A file appears under its final name only when it is complete: on a local disk
it is written beside, synced and renamed; elsewhere it is uploaded by the one call that makes objects visible.
Readers trust a file only after its length and sha256 agree with the notice that named it.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from rollog.kernel.addresses import public_address
from rollog.kernel.atomic_write import new_partial_name, partial_file, partial_name, sync_path
from rollog.kernel.errors import RollogError, WeightsError, WeightsStoreSilent
from rollog.kernel.logs import get_logger
from rollog.kernel.store_address import is_silence, open_filesystem, protocols, remedy
from rollog.kernel.store_folder import StoreFolder
from schemas.weights import WeightVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_final_name = re.compile(r"v\d{6,9}-[0-9a-f]{16}\.safetensors")
_chunk_bytes = 4 << 20
_first_pause_seconds = 0.5
_longest_pause_seconds = 5.0
_log = get_logger("weights")
_Result = TypeVar("_Result")


def weights_name(version: int, sha256: str) -> str:
    """File name of a version whose file has this sha256."""
    return f"v{version:06d}-{sha256[:16]}.safetensors"


class WeightsStore:
    """Published weights of one run under `uri` (`file:///...`, a plain path, `s3://...`, `memory://...`).

    `filesystem`, an fsspec one with its root, stands in place of what the address leads to. While a store elsewhere
    does not answer, `publish` and `fetch` try again for `wait_seconds`, or until `no_longer` is set. Raises ConfigError
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
    ) -> None:
        self.uri = uri
        self._wait_seconds = wait_seconds
        self._no_longer = no_longer or threading.Event()
        self.public_uri = public_address(uri)
        self._fs, self._root = filesystem or open_filesystem(uri)
        self._folder = StoreFolder(self._fs, self._root)
        self.is_local = "file" in protocols(self._fs)
        """Whether files are read in place, on this disk."""

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

    def publish(self, version: int, data: bytes | Path) -> WeightVersion:
        """Store one version; when this returns, the file is durable under its final name.

        Publishing the same bytes again under the same version changes nothing.
        """
        if self.is_local:
            try:
                return self._write(version, data)
            except OSError as error:
                raise WeightsError(
                    f"weights of version {version} could not be written to {self.public_uri}: {error}; "
                    "check that the store exists, is writable and has room"
                ) from error
        what = f"weights of version {version} could not be written to"
        return self._patiently(lambda: self._translated(what, lambda: self._upload(version, data)))

    def fetch(self, notice: WeightVersion, directory: Path) -> Path:
        """Local path of a file with exactly the bytes that `notice` names.

        For a store on this disk that is the stored file itself; otherwise a download in `directory`.
        """
        _check_notice(notice)
        path = self._folder.path(notice.name)
        if self.is_local:
            self._found(notice, lambda: self._verify(path, notice))
            return Path(path)
        return self._patiently(lambda: self._found(notice, lambda: self._download(path, notice, directory)))

    def stop_waiting(self) -> None:
        """From now on a store that does not answer is not waited for; what waits ends. For another thread to call."""
        self._no_longer.set()

    def has(self, name: str) -> bool:
        """Whether a complete file of this name is there. Raises WeightsError."""
        if not _final_name.fullmatch(name):
            raise WeightsError(_bad_name(name))
        path = self._folder.path(name)
        return self._translated(
            f"weights {name} could not be looked for in", lambda: bool(self._fs.exists(path))
        )

    def digest(self, name: str) -> tuple[str, int]:
        """The sha256 and length in bytes of a complete file as it is stored; nothing of it is kept."""
        if not _final_name.fullmatch(name):
            raise WeightsError(_bad_name(name))
        return self._translated(
            f"weights {name} could not be read from", lambda: self._digest(self._folder.path(name))
        )

    def names(self) -> list[str]:
        """Names of all complete files, by version. Raises WeightsError for a store elsewhere that cannot be listed."""
        names = self._folder.names() if self.is_local else self._listed()
        return sorted(name for name in names if _final_name.fullmatch(name))

    def partial_names(self) -> list[str]:
        """Names of files whose writer died before it was done."""
        return self._folder.partial_names()

    def orphans(self, named: Iterable[str]) -> list[str]:
        """Names of complete files that are not among `named`, the names in committed notices."""
        return sorted(set(self.names()) - set(named))

    def delete(self, name: str) -> None:
        """Remove one complete or partial file; a missing one is fine."""
        if not (_final_name.fullmatch(name) or partial_name.fullmatch(name)):
            raise WeightsError(_bad_name(name))
        self._folder.remove(name)

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
        """Bytes of all complete and partial files. What goes away meanwhile does not count."""
        return self._folder.num_bytes([*self.names(), *self.partial_names()])

    def remove_if_empty(self) -> None:
        """Remove the directory of a store on this disk where nothing is left in it."""
        if self.is_local:
            with suppress(OSError):  # it is not empty, or there is none
                Path(self._root).rmdir()

    def _listed(self) -> list[str]:
        return self._translated("the weights cannot be listed in", self._folder.names)

    def _digest(self, path: str) -> tuple[str, int]:
        with self._fs.open(path, "rb") as source:
            return _digest_of(source)

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

    def _write(self, version: int, data: bytes | Path) -> WeightVersion:
        root = Path(self._root)
        root.mkdir(parents=True, exist_ok=True)
        with partial_file(root) as partial:
            notice = _write_durably(version, data, partial)
            if (root / notice.name).exists():
                self._verify(self._folder.path(notice.name), notice)
            else:
                partial.replace(root / notice.name)
        sync_path(root)
        return notice

    def _upload(self, version: int, data: bytes | Path) -> WeightVersion:
        notice = _notice(version, data)
        path = self._folder.path(notice.name)
        if self._fs.exists(path):
            self._verify(path, notice)
            return notice
        self._folder.make()
        if isinstance(data, bytes):
            self._fs.pipe_file(path, data)
        else:
            self._fs.put_file(str(data), path)
        self._fs.invalidate_cache()
        return notice

    def _download(self, path: str, notice: WeightVersion, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        target = directory / notice.name
        if target.is_file() and _digest_of_file(target) == (notice.sha256, notice.num_bytes):
            return target
        with partial_file(directory) as partial:
            with self._fs.open(path, "rb") as source, partial.open("wb") as sink:
                _copy(source, sink, notice)
            partial.replace(target)
        return target

    def _verify(self, path: str, notice: WeightVersion) -> None:
        with self._fs.open(path, "rb") as source:
            _copy(source, None, notice)


def _notice(version: int, data: bytes | Path) -> WeightVersion:
    if isinstance(data, bytes):
        sha256, num_bytes = hashlib.sha256(data).hexdigest(), len(data)
    else:
        try:
            sha256, num_bytes = _digest_of_file(data)
        except OSError as error:
            raise WeightsError(f"weights of version {version} cannot be read from {data}: {error}") from error
    name = weights_name(version, sha256)
    if not _final_name.fullmatch(name):
        raise WeightsError(_bad_name(name))
    return WeightVersion(version=version, sha256=sha256, name=name, num_bytes=num_bytes)


def _check_notice(notice: WeightVersion) -> None:
    if not _final_name.fullmatch(notice.name):
        raise WeightsError(_bad_name(notice.name))
    expected = weights_name(notice.version, notice.sha256)
    if notice.name != expected:
        raise WeightsError(
            f"weights notice of version {notice.version} names {notice.name}, but version and sha256 make "
            f"{expected}; the notice is refused"
        )


def _bad_name(name: str) -> str:
    return f"{name!r} is no name of a weights file; expected v000000-0123456789abcdef.safetensors"


def _digest_of_file(path: Path) -> tuple[str, int]:
    with path.open("rb") as source:
        return _digest_of(source)


def _digest_of(source: IO[bytes]) -> tuple[str, int]:
    digest, num_bytes = hashlib.sha256(), 0
    while chunk := source.read(_chunk_bytes):
        digest.update(chunk)
        num_bytes += len(chunk)
    return digest.hexdigest(), num_bytes


def _write_durably(version: int, data: bytes | Path, path: Path) -> WeightVersion:
    """Write and sync a file. The digest of bytes is taken meanwhile: each takes a second for a billion of them."""
    with path.open("wb") as target, ThreadPoolExecutor(1, thread_name_prefix="digest") as other:
        noticed = other.submit(_notice, version, data)
        if isinstance(data, bytes):
            target.write(data)
        else:
            notice = noticed.result()
            with data.open("rb") as source:
                _copy(source, target, notice)
        target.flush()
        os.fsync(target.fileno())
        return noticed.result()


def _copy(source: IO[bytes], target: IO[bytes] | None, notice: WeightVersion) -> None:
    """Read `source`, into `target` if there is one, no further than it is as noticed; raises WeightsError otherwise."""
    digest, num_bytes = hashlib.sha256(), 0
    while num_bytes <= notice.num_bytes and (chunk := source.read(_chunk_bytes)):
        digest.update(chunk)
        num_bytes += len(chunk)
        if target is not None:
            target.write(chunk)
    if num_bytes != notice.num_bytes:
        at_least = "at least " if num_bytes > notice.num_bytes else ""
        raise WeightsError(
            f"weights {notice.name} have {at_least}{num_bytes} bytes instead of {notice.num_bytes}; the file was cut "
            "or overwritten and is not used"
        )
    if digest.hexdigest() != notice.sha256:
        raise WeightsError(
            f"weights {notice.name} have sha256 {digest.hexdigest()} instead of {notice.sha256}; the file "
            "was altered and is not used"
        )
