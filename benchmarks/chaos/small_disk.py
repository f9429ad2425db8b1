"""A disk that can be filled without harm: a file system in memory, mounted for as long as it is needed."""

from __future__ import annotations

import errno
import os
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_chunk = bytes(64 << 10)
namespace = ("unshare", "--mount", "--map-root-user")
"""What to put before a command that may not mount: there it may, and nobody else sees it."""


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A mounted file system, and the file that fills it."""

    path: Path

    def fill(self) -> None:
        """Take all the room that is left, to the last byte."""
        with self._ballast.open("ab", buffering=0) as ballast:
            chunk = _chunk
            while chunk:
                try:
                    ballast.write(chunk)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    chunk = chunk[: len(chunk) // 2]

    def make_room(self) -> None:
        """Give it back."""
        self._ballast.unlink(missing_ok=True)

    @property
    def num_free_bytes(self) -> int:
        """Room that is left."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"


@contextmanager
def small_disk(path: Path, num_bytes: int) -> Iterator[SmallDisk]:
    """A file system of that size at `path`, gone with all that is on it at the end. Raises ConfigError."""
    path.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={num_bytes},mode=0700", "rollog-small-disk", str(path))
    try:
        yield SmallDisk(path)
    finally:
        _run("umount", "--lazy", str(path))


def _run(*words: str) -> None:
    try:
        ended = subprocess.run(words, check=False, capture_output=True, text=True)  # no words of others
    except FileNotFoundError as error:
        raise ConfigError(f"a small file system needs the command {words[0]}, which is not here") from error
    if ended.returncode:
        raise ConfigError(
            f"{' '.join(words)}: {ended.stderr.strip()}; a small file system takes the right to mount: be root, or put "
            f"`{' '.join(namespace)}` before the command where users may have namespaces"
        )
