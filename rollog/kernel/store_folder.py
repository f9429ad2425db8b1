"""A folder of a store: names, sizes and removal of its files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollog.kernel.atomic_write import partial_name
from rollog.kernel.store_address import has_buckets

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """A folder by its fsspec filesystem and its path there. Lets errors of the filesystem through."""

    filesystem: Any
    root: str

    def path(self, name: str) -> str:
        """The path of one file."""
        return f"{self.root.rstrip('/')}/{name}"

    def make(self) -> None:
        """Make the folder, unless its store has buckets: there is none in those, and a mistyped bucket is not made."""
        if not has_buckets(self.filesystem):
            self.filesystem.makedirs(self.root, exist_ok=True)

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
