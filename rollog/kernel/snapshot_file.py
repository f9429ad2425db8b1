"""What a role keeps of its state on its own disk, so that its next start need not read the whole log.

The file is an optimisation: whatever is wrong with it is a warning in the log, and the role reads everything. It is no
part of the log, where whoever may write to a topic could forge it: only a file that its own user alone may write is
read, and nothing of it is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from rollog.kernel.logs import get_logger
from rollog.kernel.private_directory import make_private, writable_by_others
from schemas.codec import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Content = TypeVar("Content")

log = get_logger("snapshot")

snapshot_seconds = 30.0
"""So long after one snapshot the next is due."""

snapshot_format = 1
_most_bytes = 512 << 20
_unusable = (ValueError, TypeError, KeyError, AttributeError, OverflowError, zlib.error, SchemaError)
"""What is raised by making something of data that a role did not write so."""


class SnapshotFile:
    """The snapshot of one role at `path`; without a path there is none, and nothing is written.

    The first line says format, role and the sha256 of the second, which is JSON.
    """

    def __init__(self, path: Path | None, role: str, every_seconds: float = snapshot_seconds) -> None:
        self._path = path
        self._role = role
        self._every_seconds = every_seconds
        self._written_at: float | None = None
        self._is_failing = False

    def read(self) -> dict[str, Any] | None:
        """Its content, or None where there is none that can be used."""
        if self._path is None:
            return None
        try:
            return self._content(_own_file(self._path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self._ignored(str(error))
            return None

    def read_as(self, made_of: Callable[[dict[str, Any]], Content]) -> Content | None:
        """What `made_of` makes of the content, or None where there is none that can be used.

        `made_of` may raise ValueError for what does not fit, and what else comes of data that are none of the role's.
        """
        content = self.read()
        if content is None:
            return None
        try:
            return made_of(content)
        except _unusable as error:
            self._ignored(f"{type(error).__name__}: {error}")
            return None

    def _ignored(self, reason: str) -> None:
        log.warning(
            "snapshot ignored; the whole log is read", role=self._role, path=str(self._path), reason=reason
        )

    @property
    def is_kept(self) -> bool:
        """Whether there is a path to keep it at."""
        return self._path is not None

    def make_due(self) -> None:
        """Let the next one be written whenever the last was."""
        self._written_at = None

    def is_due(self, now: float) -> bool:
        """Whether the next one should be written; `now` is in seconds, of any clock."""
        if self._path is None:
            return False
        return self._written_at is None or now - self._written_at >= self._every_seconds

    def write(self, content: dict[str, Any], now: float) -> None:
        """Put `content` in the place of what is there. Where that fails, a warning: the role goes on without."""
        if self._path is None:
            return
        self._written_at = now
        try:
            self._replace(self._path, json.dumps(content, separators=(",", ":")).encode())
        except OSError as error:
            if not self._is_failing:
                log.warning("snapshot not written", role=self._role, path=str(self._path), error=str(error))
            self._is_failing = True
        else:
            self._is_failing = False

    def _replace(self, path: Path, content: bytes) -> None:
        head = {
            "format": snapshot_format,
            "role": self._role,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        make_private(path.parent)
        # One name, so that crashes leave one file at most. Nothing is synced: the digest tells what is cut.
        partial = path.with_name(f"{path.name}.partial")
        try:
            with suppress(FileNotFoundError):
                partial.unlink()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(partial, flags, 0o600), "wb") as file:
                file.write(json.dumps(head).encode() + b"\n" + content)
            partial.replace(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise

    def _content(self, data: bytes) -> dict[str, Any]:
        first, _, content = data.partition(b"\n")
        head = json.loads(first)
        if not isinstance(head, dict) or head.get("format") != snapshot_format:
            raise ValueError(f"its first line names no format {snapshot_format}")
        if head.get("role") != self._role:
            raise ValueError(f"it is a snapshot of the {head.get('role')}")
        if head.get("sha256") != hashlib.sha256(content).hexdigest():
            raise ValueError("it does not have the sha256 that its first line names")
        read = json.loads(content)
        if not isinstance(read, dict):
            raise ValueError("it holds no JSON object")  # noqa: TRY004 - of what was read, not of an argument
        return read


def _own_file(path: Path) -> bytes:
    """The bytes of a file that this user (or root) alone may write. Raises OSError, or ValueError for another."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")
        if found.st_uid not in {os.geteuid(), 0} or found.st_mode & writable_by_others:
            raise ValueError(
                f"others may have written it (user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o})"
            )
        if found.st_size > _most_bytes:
            raise ValueError(f"it has {found.st_size} bytes, more than {_most_bytes}")
        return file.read(_most_bytes)
