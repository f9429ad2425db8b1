"""Weights of one worker on this machine: one version at a time, and none when the worker has ended.

Workers of one machine have one copy together in shared memory, so that each version is fetched once, patched once, and
there once. Who cannot have that copy has one of its own. What a worker that was killed leaves the next one removes that
downloads for the same run.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from rollog.kernel.errors import WeightsError
from rollog.kernel.logs import get_logger
from rollog.kernel.process_directory import ProcessDirectory
from rollog.kernel.versions.copies import NoRoomForCopy, VersionCopy
from rollog.kernel.versions.manifest import manifest_format
from rollog.kernel.versions.shared_copy import CopyAhead, CopyBusy

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.versions.shared_copy import SharedCopy
    from rollog.kernel.weights import WeightsStore
    from schemas import WeightVersion


_log = get_logger("rollout")
_ahead_seconds = 5.0
"""So long may another worker know of a later version; then this one fetches what it was asked for by itself."""


class Downloads:
    """Has files of committed versions, in `shared`, the copy of this machine, or else in `directory`, its own.

    A version that is stored as shards stays until the next one comes: a patch of it makes that one, and only the patch
    is fetched. What a store on this disk has in full is read in place; nothing of the store is ever changed here, and
    no directory is made before a patch comes.
    """

    def __init__(self, store: WeightsStore, directory: Path, shared: SharedCopy | None = None) -> None:
        self._store = store
        self._shared = shared
        self._ahead: tuple[WeightVersion, float] | None = None
        """A version that the copy of this machine has passed, and since when that is known."""
        self._has_complained = False
        self._directory = directory
        self._copy = VersionCopy(directory)
        self._made: ProcessDirectory | None = None
        self._path: Path | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="download")

    @property
    def path(self) -> Path:
        """What was fetched last: a file, or a manifest beside its shards."""
        assert self._path is not None
        return self._path

    async def fetch(self, notice: WeightVersion) -> None:
        """Have exactly the weights that `notice` names at `path`, and no others. Raises WeightsError.

        CopyAhead says that another worker of this machine has read of a later version, as this one soon will.
        """
        self._discard_file()
        self._path = await asyncio.get_running_loop().run_in_executor(self._thread, self._fetch, notice)

    def loaded(self) -> None:
        """What was fetched is in the engine: delete it, unless a patch may make the next version of it."""
        self._discard_file()
        if self._shared is not None:
            self._shared.release()

    def discard(self) -> None:
        """Have what was fetched no more, unless it is the store's own."""
        self._discard_file()
        if self._shared is not None:
            self._shared.discard()
        self._copy.discard()

    async def close(self) -> None:
        """Wait for a download under way, which waits for no silent store any more, then remove the directory."""
        self._store.stop_waiting()
        if self._shared is not None:
            self._shared.stop()
        await asyncio.to_thread(self._thread.shutdown)
        if self._shared is not None:
            self._shared.close()
        if self._made is not None:
            await asyncio.to_thread(self._made.close)

    def _fetch(self, notice: WeightVersion) -> Path:
        if (path := self._fetch_shared(notice)) is not None:
            self._copy.discard()
            return path
        if self._made is None and not (self._store.is_local and notice.base is None):
            try:
                self._made = ProcessDirectory(self._directory.parent, self._directory.name)
            except OSError as error:
                raise WeightsError(f"{self._directory} cannot hold downloads: {error}") from error
        return self._store.bring(notice, self._copy)

    def _fetch_shared(self, notice: WeightVersion) -> Path | None:
        """The version in the copy of this machine, None where it has to be fetched by this worker for itself."""
        if self._shared is None:
            return None
        self._shared.release()
        is_in_store = self._store.is_local and notice.base is None
        if is_in_store or notice.format != manifest_format:
            return None
        try:
            return self._shared.bring(notice, lambda copy: self._store.bring(notice, copy))
        except CopyAhead:
            if self._ahead is None or self._ahead[0] != notice:
                self._ahead = notice, time.monotonic()
            if time.monotonic() - self._ahead[1] < _ahead_seconds:
                raise
        except (CopyBusy, NoRoomForCopy, OSError) as error:
            if not self._has_complained:
                self._has_complained = True
                _log.warning("this worker has a copy of the weights of its own", error=str(error))
        return None

    def _discard_file(self) -> None:
        """Delete a version that is one file. Such a run has no patches."""
        path, self._path = self._path, None
        if path is not None and path.parent == self._directory and self._copy.pair is None:
            path.unlink(missing_ok=True)
