"""Weights files of one worker on this machine: one at a time, and none when the worker has ended."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.weights import WeightsStore
    from schemas import WeightVersion


class Downloads:
    """Fetches files of committed versions into `directory`, which belongs to this worker alone.

    A store on this disk is read in place; nothing of it is ever deleted here.
    """

    def __init__(self, store: WeightsStore, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._path: Path | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="download")

    @property
    def path(self) -> Path:
        """The file fetched last."""
        assert self._path is not None
        return self._path

    async def fetch(self, notice: WeightVersion) -> None:
        """Have exactly the bytes that `notice` names at `path`, and no other file. Raises WeightsError."""
        self.discard()
        loop = asyncio.get_running_loop()
        self._path = await loop.run_in_executor(self._thread, self._store.fetch, notice, self._directory)

    def discard(self) -> None:
        """Delete the fetched file, unless it is the store's own."""
        path, self._path = self._path, None
        if path is not None and path.parent == self._directory:
            path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Wait for a download under way, then remove the directory. Raises OSError when it stays."""
        await asyncio.to_thread(self._thread.shutdown)
        if self._directory.exists():
            shutil.rmtree(self._directory)
