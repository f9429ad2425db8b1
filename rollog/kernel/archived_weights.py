"""The files of versions and objects of an archive as a weights store that can only be read."""

from __future__ import annotations

from io import BufferedReader, RawIOBase
from typing import IO, TYPE_CHECKING, Any

from fsspec import AbstractFileSystem

from rollog.kernel.broker.archive_format import payload_member, weights_member
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from rollog.kernel.broker.archive_format import ArchiveFile, Member

_root = "weights"


def archived_weights(archive: ArchiveFile) -> WeightsStore:
    """The store; publishing to it raises WeightsError, as does fetching a file that was not put in."""
    return WeightsStore(f"archive {archive.path}", filesystem=(_ArchivedFiles(archive), _root))


class _ArchivedFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    protocol = "rollog-archive"
    cachable = False

    def __init__(self, archive: ArchiveFile) -> None:
        super().__init__()
        self._archive = archive

    def ls(self, path: str, detail: bool = True, **others: Any) -> list[Any]:
        del path, others
        names = [f"{_root}/{name}" for name in self._archive.manifest.weights]
        return [self.info(name) for name in names] if detail else names

    def info(self, path: str, **others: Any) -> dict[str, Any]:
        del others
        manifest, name = self._archive.manifest, path.rsplit("/", 1)[-1]
        found = manifest.weights.get(name)
        num_bytes = manifest.payloads.get(name) if found is None else found.num_bytes
        if num_bytes is None:
            raise FileNotFoundError(path)
        return {"name": path, "size": num_bytes, "type": "file"}

    def open(self, path: str, mode: str = "rb", **others: Any) -> IO[bytes]:
        """One file. Raises OSError for any other mode than reading."""
        del others
        if mode != "rb":
            raise OSError("an archive is never written to")
        self.info(path)
        file = self._archive.open()
        try:
            name = path.rsplit("/", 1)[-1]
            is_weights = name in self._archive.manifest.weights
            member = self._archive.window(file, weights_member(name) if is_weights else payload_member(name))
        except BaseException:
            file.close()
            raise
        return BufferedReader(_MemberReader(member))

    def rm_file(self, path: str) -> None:
        raise OSError(f"{path} is in an archive, which is never written to")


class _MemberReader(RawIOBase):
    """Reads one member from its beginning, and closes the archive's file in the end."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._member.head(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._member.file.close()
        super().close()
