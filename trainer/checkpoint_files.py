"""Files of a checkpoint: their digests are taken while they are written, by whoever writes them."""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollog.kernel.atomic_write import sync_path
from rollog.kernel.crash_points import CrashPoint, reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from io import FileIO
    from pathlib import Path

    Digests = Mapping[str, str]
    """sha256 of files by their names below the checkpoint's directory."""

_piece_bytes = 4 << 20
"""Small enough to be in the processor's cache still when its digest is taken."""
_most_unsynced_bytes = 64 << 20
"""What is written of a version meanwhile is synced, too, and waits for whatever else the disk has still to take."""


def _nobody() -> None:
    """There is nobody to give way to."""


class HashedFile:
    """A new file as PyTorch's writer wants one. Its first OSError stays in `error`: that writer may hide it.

    `give_way` is called before each piece.
    """

    def __init__(self, file: FileIO, give_way: Callable[[], None] = _nobody) -> None:
        self._file = file
        self._give_way = give_way
        self._sha256 = hashlib.sha256()
        self._unsynced_bytes = 0
        self.error: OSError | None = None

    @property
    def sha256(self) -> str:
        """Of what was written so far, in hexadecimal."""
        return self._sha256.hexdigest()

    def write(self, data: bytes | memoryview) -> int:
        """Append all of it. Raises OSError."""
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), _piece_bytes):
                self._append(view[start : start + _piece_bytes])
        except OSError as error:
            self.error = self.error or error
            raise
        return len(view)

    def flush(self) -> None:
        """Nothing is held back."""

    def _append(self, piece: memoryview) -> None:
        self._give_way()
        rest = piece
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        self._sha256.update(piece)
        self._unsynced_bytes += len(piece)
        if self._unsynced_bytes >= _most_unsynced_bytes:
            os.fsync(self._file.fileno())
            self._unsynced_bytes = 0
        reach(CrashPoint.CHECKPOINT_FILE_HALF_WRITTEN)


@contextmanager
def hashed_file(path: Path, give_way: Callable[[], None] = _nobody) -> Iterator[HashedFile]:
    """A new file at `path`; it and its name are durable when the block is done. Raises OSError."""
    with path.open("xb", buffering=0) as file:
        hashed = HashedFile(file, give_way)
        try:
            yield hashed
        except Exception as error:
            if hashed.error is None or hashed.error is error:
                raise
            raise hashed.error from error
        os.fsync(file.fileno())
    sync_path(path.parent)
