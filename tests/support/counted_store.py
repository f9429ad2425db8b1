"""A store elsewhere, in this process's memory, that knows which files were read in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from fsspec.implementations.memory import MemoryFileSystem

from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from rollog.kernel.versions.lane import Lane


class CountedFiles(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Also what a role gets for `counted://...`, where somebody has registered it with fsspec."""

    protocol = "counted"
    cachable = False
    _opened: ClassVar[list[str]] = []

    def __init__(self, root: str | None = None) -> None:
        super().__init__()
        self.root = root or f"/{uuid4().hex}/weights"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).replace("counted://", "memory://"))

    def open(self, path: str, mode: str = "rb", **others: Any) -> Any:
        """As ever, and noted."""
        if mode == "rb":
            self._opened.append(path)
        return super().open(path, mode, **others)

    @property
    def read(self) -> list[str]:
        """Names of files below `root` in the order in which anybody opened them to be read."""
        return [path.rsplit("/", 1)[-1] for path in self._opened if path.startswith(f"{self.root}/")]

    def forget(self) -> None:
        """Begin to count anew."""
        self._opened.clear()

    def seen_by(self, lane: Lane | None = None) -> WeightsStore:
        """The store, as a role of one machine sees it."""
        return WeightsStore(f"counted:/{self.root}", filesystem=(self, self.root), lane=lane)
