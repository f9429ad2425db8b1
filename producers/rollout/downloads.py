"""Fetched weights of one worker on this machine: one version at a time, and none when the worker has ended.

What a worker that was killed leaves the next one removes that downloads for the same run.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from rollog.kernel.errors import WeightsError
from rollog.kernel.process_directory import ProcessDirectory
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from pathlib import Path

    from schemas import WeightVersion


class Downloads:
    """Fetches files of committed versions into `directory`, which belongs to this worker alone.

    A store on this disk is read in place; nothing of it is ever deleted here, and no directory is made.
    """

    def __init__(self, store: WeightsStore, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._copies = WeightsStore(directory.resolve().as_uri())
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
        self.discard()
        self._path = await asyncio.get_running_loop().run_in_executor(self._thread, self._fetch, notice)

    def discard(self) -> None:
        """Delete what was fetched, unless it is the store's own."""
        path, self._path = self._path, None
        if path is not None and path.parent == self._directory:
            self._keep_only()

    async def close(self) -> None:
        """Wait for a download under way, which waits for no silent store any more, then remove the directory."""
        self._store.stop_waiting()
        await asyncio.to_thread(self._thread.shutdown)
        if self._made is not None:
            await asyncio.to_thread(self._made.close)

    def _fetch(self, notice: WeightVersion) -> Path:
        if self._made is None and not self._store.is_local:
            try:
                self._made = ProcessDirectory(self._directory.parent, self._directory.name)
            except OSError as error:
                raise WeightsError(f"{self._directory} cannot hold downloads: {error}") from error
        if self._made is not None:
            # Shards of a version whose download failed midway: they are of use to that version alone.
            self._keep_only(notice.name)
        return self._store.fetch(notice, self._directory)

    def _keep_only(self, *names: str) -> None:
        for name in self._copies.orphans(names):
            self._copies.delete(name)
