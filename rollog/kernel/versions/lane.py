"""The fast lane: files of the newest versions in shared memory, beside a store elsewhere, which stays the truth.

The trainer writes each file of a version here while it writes it to the store: the same name, the same bytes. A worker
on the same machine reads files here when it has read the notice of their version, and compares them as it would those
of the store; one that is not here, or does not agree, it reads in the store. So nothing is served before its commit,
and whatever becomes of the lane costs time alone.

What is here: the newest version, and where it is a patch, the newest ones since the last full form, enough of them to
reach back to the last cumulative one. Full forms go when the next version comes. The trainer alone deletes; it removes
what an earlier one left when it begins, and its own when it ends.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from rollog.kernel.logs import get_logger
from rollog.kernel.shared_memory import free_memory_bytes, has_workers, open_private, remove_copies
from rollog.kernel.versions.chains import cumulative_every
from rollog.kernel.versions.manifest import manifest_name, shard_name, stem_of, version_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rollog.kernel.versions.shards import VersionFiles

_log = get_logger("weights")
_reading = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_writing = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Lane:
    """The lane below `shared`, the directory of a run on this machine (`rollog.kernel.shared_memory`).

    `free_bytes` tells how much may be written there.
    """

    def __init__(self, shared: Path, *, free_bytes: Callable[[Path], int] = free_memory_bytes) -> None:
        self._shared = shared
        self._free_bytes = free_bytes
        self._directory = shared / "lane"
        self._has_complained = False

    def open(self, name: str) -> IO[bytes]:
        """A file of a version, to read. Raises OSError where there is none that could be the trainer's."""
        _check(name)
        directory = open_private(self._directory)
        try:
            file = os.fdopen(os.open(name, _reading, dir_fd=directory), "rb")
        finally:
            os.close(directory)
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            file.close()
            raise PermissionError(f"{name} is no file of this user")
        return file

    def beside(self, files: VersionFiles) -> VersionFiles:
        """Files of one version that go to `files`, and here where workers live on this machine."""
        return _BesideFiles(files, self) if has_workers(self._shared) else files

    def clear(self) -> None:
        """Remove everything, and the directory of the run where nobody else uses it."""
        self.remove(lambda _: True)
        remove_copies(self._shared)
        with suppress(OSError):  # there is none, or it is not empty
            self._directory.rmdir()
            self._shared.rmdir()

    def create(self, name: str) -> IO[bytes]:
        """A new file. Raises OSError."""
        _check(name)
        os.close(open_private(self._shared))
        directory = open_private(self._directory, make=True)
        try:
            return os.fdopen(os.open(name, _writing, 0o600, dir_fd=directory), "wb", buffering=0)
        finally:
            os.close(directory)

    def require_room(self, num_bytes: int) -> None:
        """Raise OSError where so many bytes would take what others need."""
        if num_bytes > (free := self._free_bytes(self._shared)):
            raise OSError(f"{num_bytes} bytes are needed, {free} may be taken")

    def remove(self, chosen: Callable[[str], bool]) -> None:
        """Remove files by their names, as far as that is possible."""
        try:
            directory = open_private(self._directory)
        except OSError:
            return
        try:
            for name in filter(chosen, _names_in(directory)):
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)

    def keep_newest(self, stem: str, *, is_full: bool) -> None:
        """Remove what the version with this stem makes superfluous: all others, or for a patch full and old ones."""
        oldest = version_of(stem) - cumulative_every
        gone = {
            stem_of(name)
            for name in self._names()
            if is_full or name.endswith(".safetensors") or version_of(name) < oldest
        }
        self.remove(lambda name: stem_of(name) in gone - {stem})

    def complain(self, error: OSError) -> None:
        """Say, once, that workers read from the store, and why."""
        if not self._has_complained:
            self._has_complained = True
            _log.warning(
                "versions are not in shared memory, workers read them in the store",
                directory=str(self._shared),
                error=str(error),
            )

    def _names(self) -> list[str]:
        try:
            return _names_in(self._directory)
        except OSError:
            return []


class _BesideFiles:
    """Files of one version to the store and, as far as that works, to the lane (`VersionFiles`)."""

    def __init__(self, files: VersionFiles, lane: Lane) -> None:
        self._files = files
        self._lane = lane
        self._file: IO[bytes] | None = None
        self._names: set[str] = set()
        self._has_failed = False

    def begin(self, name: str) -> None:
        """Begin a shard in both."""
        self._files.begin(name)
        self._try(lambda: self._begin(name))

    def write(self, data: memoryview) -> None:
        """Bytes of it."""
        self._files.write(data)
        self._try(lambda: self._write(data))

    def end(self) -> None:
        """Nothing of the lane needs to be durable."""
        self._files.end()
        self._try(self._close)

    def publish(self, name: str, manifest: bytes) -> None:
        """The store first: then it is a version."""
        self._files.publish(name, manifest)
        self._try(lambda: self._publish(name, manifest))

    def abandon(self) -> None:
        """Remove what was written."""
        self._files.abandon()
        self._forget()

    def _try(self, write: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            write()
        except OSError as error:
            self._has_failed = True
            self._forget()
            self._lane.complain(error)

    def _begin(self, name: str) -> None:
        self._file = self._lane.create(name)
        self._names.add(name)

    def _write(self, data: memoryview) -> None:
        assert self._file is not None
        self._lane.require_room(len(data))
        while data:
            data = data[self._file.write(data) :]

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _publish(self, name: str, manifest: bytes) -> None:
        is_full = any(each.endswith(".safetensors") for each in self._names)
        self._begin(name)
        self._write(memoryview(manifest))
        self._close()
        self._lane.keep_newest(stem_of(name), is_full=is_full)

    def _forget(self) -> None:
        with suppress(OSError):
            self._close()
        self._lane.remove(lambda name: name in self._names)


def _names_in(directory: Path | int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _check(name: str) -> None:
    if not (manifest_name.fullmatch(name) or shard_name.fullmatch(name)):
        raise PermissionError(f"{name!r:.80} is no name of a version's file")
