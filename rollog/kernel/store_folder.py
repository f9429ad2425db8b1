"""A folder of a store: names, sizes and removal of its files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

from rollog.kernel.atomic_write import partial_name
from rollog.kernel.errors import WeightsError
from rollog.kernel.logs import get_logger
from rollog.kernel.store_address import has_buckets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_log = get_logger("weights")
_Taken = TypeVar("_Taken")


class NearerFiles(Protocol):
    """Files that may be the store's, and can be had sooner."""

    def open(self, name: str) -> IO[bytes]:
        """One of them, to read. Raises OSError where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """A folder by its fsspec filesystem and its path there. Lets errors of the filesystem through.

    `nearer` is looked at first by `read`, and by nothing else.
    """

    filesystem: Any
    root: str
    nearer: NearerFiles | None = None

    def read(self, name: str, take: Callable[[IO[bytes]], _Taken]) -> _Taken:
        """What `take` makes of a file. It reads all of it and raises WeightsError where the file is not as it must be.

        It is called a second time, with the store's file, where a nearer one cannot be read or is refused.
        """
        if self.nearer is not None:
            try:
                with self.nearer.open(name) as source:
                    return take(source)
            except FileNotFoundError:
                pass  # it may have been removed by now, or was never there
            except (OSError, WeightsError) as error:
                _log.warning("a file in shared memory is not used", name=name, error=str(error))
        with self.filesystem.open(self.path(name), "rb") as source:
            return take(source)

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
