"""A folder of a store: names, sizes and removal of its files; a file on this disk gets its name when it is whole."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

partial_name = re.compile(r"\.partial-[0-9a-f]{16}")
"""Names of files whose writer is at work, or died before it was done."""


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """A folder by its fsspec filesystem and its path there. Lets errors of the filesystem through."""

    filesystem: Any
    root: str

    def path(self, name: str) -> str:
        """The path of one file."""
        return f"{self.root.rstrip('/')}/{name}"

    def names(self) -> list[str]:
        """Names of everything in it; none where there is no such folder."""
        # Listings of object stores are cached by fsspec; other processes write here.
        self.filesystem.invalidate_cache()
        try:
            return [str(path).rsplit("/", 1)[-1] for path in self.filesystem.ls(self.root, detail=False)]
        except FileNotFoundError:
            return []

    def partial_names(self) -> list[str]:
        """Names of unfinished files, in order."""
        return sorted(name for name in self.names() if partial_name.fullmatch(name))

    def remove(self, name: str) -> None:
        """Remove one file; a missing one is fine."""
        with suppress(FileNotFoundError):
            self.filesystem.rm_file(self.path(name))

    def num_bytes(self, names: Iterable[str]) -> int:
        """Bytes of these files. What goes away meanwhile does not count."""
        total = 0
        for name in names:
            with suppress(FileNotFoundError):
                total += self.filesystem.size(self.path(name)) or 0
        return total


def new_partial_name() -> str:
    """A name for a file that is not whole yet."""
    return f".partial-{secrets.token_hex(8)}"


@contextmanager
def partial_file(directory: Path) -> Iterator[Path]:
    """A name to write to before renaming; removed if the caller fails."""
    path = directory / new_partial_name()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
