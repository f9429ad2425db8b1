"""Weights of one worker on this machine: one version at a time, and none when the worker has ended.

What a worker that was killed leaves the next one removes that downloads for the same run.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from rollog.kernel.errors import WeightsError
from rollog.kernel.process_directory import ProcessDirectory
from rollog.kernel.versions.copies import VersionCopy

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.weights import WeightsStore
    from schemas import WeightVersion


class Downloads:
    """Has files of committed versions in `directory`, which belongs to this worker alone.

    A version that is stored as shards stays until the next one comes: a patch of it makes that one, and only the patch
    is fetched. What a store on this disk has in full is read in place; nothing of the store is ever changed here, and
    no directory is made before a patch comes.
    """

    def __init__(self, store: WeightsStore, directory: Path) -> None:
        self._store = store
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
        """Have exactly the weights that `notice` names at `path`, and no others. Raises WeightsError."""
        self._discard_file()
        self._path = await asyncio.get_running_loop().run_in_executor(self._thread, self._fetch, notice)

    def loaded(self) -> None:
        """What was fetched is in the engine: delete it, unless a patch may make the next version of it."""
        self._discard_file()

    def discard(self) -> None:
        """Delete what was fetched, unless it is the store's own."""
        self._discard_file()
        self._copy.discard()

    async def close(self) -> None:
        """Wait for a download under way, which waits for no silent store any more, then remove the directory."""
        self._store.stop_waiting()
        await asyncio.to_thread(self._thread.shutdown)
        if self._made is not None:
            await asyncio.to_thread(self._made.close)

    def _fetch(self, notice: WeightVersion) -> Path:
        if self._made is None and not (self._store.is_local and notice.base is None):
            try:
                self._made = ProcessDirectory(self._directory.parent, self._directory.name)
            except OSError as error:
                raise WeightsError(f"{self._directory} cannot hold downloads: {error}") from error
        return self._store.bring(notice, self._copy)

    def _discard_file(self) -> None:
        """Delete a version that is one file. Such a run has no patches."""
        path, self._path = self._path, None
        if path is not None and path.parent == self._directory and self._copy.pair is None:
            path.unlink(missing_ok=True)
