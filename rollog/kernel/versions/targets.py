"""Where the files of a version go: onto this disk, or to a store elsewhere.

On a disk shards are written under their own names, which nobody else uses, and synced while the next one is written;
then the manifest is written beside, synced and renamed, and the directory synced. Elsewhere a shard is gathered in
memory and uploaded by one call while the next one is gathered, as far as there is room for both; the manifest follows
when all uploads are confirmed.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from typing import IO, TYPE_CHECKING

from rollog.kernel.atomic_write import make_durable, partial_file, sync_path
from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.manifest import version_of
from rollog.kernel.versions.shards import shard_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from pathlib import Path


_most_bytes = 2 * shard_bytes - (64 << 20)
"""Two shards are what publishing may take beside the weights, threads and buffers included."""


class DiskFiles:
    """Files of one version in a directory of this disk (`rollog.kernel.versions.shards.VersionFiles`)."""

    def __init__(self, directory: Path, naming: Callable[[int], AbstractContextManager[None]]) -> None:
        """`naming` makes errors of the disk into WeightsError that name the version."""
        self._directory = directory
        self._naming = naming
        self._written: list[Path] = []
        self._file: IO[bytes] | None = None
        self._syncing: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sync")

    def begin(self, name: str) -> None:
        """Create the file of a shard."""
        path = self._directory / name
        with self._naming(version_of(name)):
            make_durable(self._directory)
            self._file = path.open("xb", buffering=0)
        self._written.append(path)

    def write(self, data: memoryview) -> None:
        """Write all of it."""
        assert self._file is not None
        with self._naming(version_of(self._written[-1].name)):
            while data:
                data = data[self._file.write(data) :]
        reach(CrashPoint.SHARD_HALF_WRITTEN)

    def end(self) -> None:
        """Sync it on another thread."""
        assert self._file is not None
        self._syncing.append(self._thread.submit(_sync_and_close, self._file))
        self._file = None

    def publish(self, name: str, manifest: bytes) -> None:
        """Wait for the shards, then write the manifest."""
        with self._naming(version_of(name)):
            for syncing in self._syncing:
                syncing.result()
            reach(CrashPoint.MANIFEST_MISSING)
            with partial_file(self._directory) as partial:
                with partial.open("wb") as file:
                    file.write(manifest)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(self._directory / name)
            sync_path(self._directory)
        self._thread.shutdown()

    def abandon(self) -> None:
        """Close and delete what was written."""
        self._thread.shutdown()
        if self._file is not None:
            self._file.close()
        for path in self._written:
            with suppress(OSError):  # whoever lists orphans finds it
                path.unlink(missing_ok=True)


def _sync_and_close(file: IO[bytes]) -> None:
    with file:
        os.fsync(file.fileno())


class ElsewhereFiles:
    """Files of one version in a store that is not on this disk (`rollog.kernel.versions.shards.VersionFiles`).

    `upload` and `remove` take names and raise WeightsError. One shard is gathered and at most one uploaded at a time,
    together of at most `most_bytes` unless one tensor has more.
    """

    def __init__(
        self,
        upload: Callable[[str, bytes], None],
        remove: Callable[[str], None],
        *,
        most_bytes: int = _most_bytes,
    ) -> None:
        self._upload = upload
        self._remove = remove
        self._most_bytes = most_bytes
        self._uploading_bytes = 0
        self._gathered = BytesIO()
        self._names: list[str] = []
        self._uploading: deque[Future[None]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="upload")

    def begin(self, name: str) -> None:
        """Begin to gather."""
        self._names.append(name)
        self._gathered = BytesIO()

    def write(self, data: memoryview) -> None:
        """Gather, where there is room beside the shard that is uploaded; otherwise once that has arrived."""
        if self._uploading_bytes + self._gathered.tell() + len(data) > self._most_bytes:
            self._wait()
        self._gathered.write(data)

    def end(self) -> None:
        """Upload, once the shard before has arrived."""
        self._wait()
        gathered, self._gathered = self._gathered, BytesIO()
        self._uploading_bytes = gathered.tell()
        # No copy: the buffer is handed over as it is.
        self._uploading.append(self._thread.submit(self._upload, self._names[-1], gathered.getvalue()))

    def publish(self, name: str, manifest: bytes) -> None:
        """Wait for the shards, then upload the manifest."""
        self._wait()
        reach(CrashPoint.MANIFEST_MISSING)
        self._upload(name, manifest)
        self._thread.shutdown()

    def abandon(self) -> None:
        """Delete what was uploaded, where the store answers."""
        self._thread.shutdown(cancel_futures=True)
        for name in self._names:
            with suppress(WeightsError):  # whoever lists orphans finds it
                self._remove(name)

    def _wait(self) -> None:
        while self._uploading:
            self._uploading.popleft().result()
        self._uploading_bytes = 0
