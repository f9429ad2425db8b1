"""Directories that belong to one process each and go with it.

    PARENT/lock          held while a directory is made or removed
    PARENT/3f9a61c2/     mode 0700; `lock` in it is held by its process as long as that lives

A process that is killed leaves its directory; the next start finds that nobody holds its lock, and removes it. Locks
instead of process ids, because processes of several containers may share a state directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from rollog.kernel.file_lock import locked, open_lock
from rollog.kernel.logs import get_logger
from rollog.kernel.private_directory import make_private

if TYPE_CHECKING:
    from pathlib import Path

log = get_logger("directories")

_lock_name = "lock"


class ProcessDirectory:
    """A directory of this process below `parent`, made at once. `close` removes it."""

    def __init__(self, parent: Path, name: str) -> None:
        """Make it, and remove those whose process was killed. Raises OSError."""
        make_private(parent)
        with locked(parent / _lock_name):
            _remove_leftovers(parent)
            self.path = parent / name
            make_private(self.path)
            self._lock = open_lock(self.path / _lock_name)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove the directory with everything in it; what cannot be removed is logged. Idempotent."""
        if self._lock < 0:
            return
        lock, self._lock = self._lock, -1
        try:
            # Under the parent's lock no other process looks at a directory that is half removed.
            with suppress(FileNotFoundError), locked(self.path.parent / _lock_name):
                _remove(self.path)
        finally:
            os.close(lock)


def _remove_leftovers(parent: Path) -> None:
    """Call it with the parent locked: then every directory of a living process has its lock held."""
    for directory in sorted(each for each in parent.iterdir() if each.is_dir() and not each.is_symlink()):
        lock = open_lock(directory / _lock_name)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            log.info("directory of a process that was killed removed", directory=directory)
            _remove(directory)
        finally:
            os.close(lock)


def _remove(directory: Path) -> None:
    def tell(_: object, path: str, error: BaseException) -> None:
        if not isinstance(error, FileNotFoundError):  # a child of its process removes its socket as it ends
            log.warning("a file of a process that has ended could not be removed", path=path, error=error)

    shutil.rmtree(directory, onerror=lambda function, path, info: tell(function, path, info[1]))
