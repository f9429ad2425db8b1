"""Where vLLM's processes keep their sockets and temporary files: a private directory per worker, gone with it.

    HOME/runs/RUN/sockets/lock          held while a directory is made or leftovers are removed
    HOME/runs/RUN/sockets/3f9a61c2/     mode 0700; `lock` in it is held by its worker as long as that lives
    TMP/rollog-1000-<digest of HOME/runs/RUN>/    in place of `sockets` where its path is too long for a socket

A worker that is killed leaves its directory; the next start finds that nobody holds its lock, and removes it. Locks
instead of process ids, because workers of several containers may share a state directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError
from rollog.kernel.logs import get_logger
from rollog.kernel.private_directory import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator

log = get_logger("rollout")

max_path_bytes = 70
"""Of a directory: a socket's path has room for 107 bytes, and vLLM adds a slash and 36 characters."""
_name_bytes = 4
_lock_name = "lock"


class SocketDirectory:
    """One worker's directory for sockets and temporary files, made at once. `close` removes it."""

    def __init__(self, home: Path | None) -> None:
        """Below `home`, or where there is none below the temp directory. Raises ConfigError, OSError."""
        parent = _parent(home)
        with _locked(parent / _lock_name):
            _remove_leftovers(parent)
            self.path = parent / secrets.token_hex(_name_bytes)
            make_private(self.path)
            self._lock = _open_lock(self.path / _lock_name)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove the directory with everything in it; a second call does nothing."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1


def _parent(home: Path | None) -> Path:
    """The directory of all workers of a state directory, made where it is missing. Raises ConfigError."""
    parent = None if home is None else home.resolve() / "sockets"
    if parent is None or _is_too_long(parent):
        digest = hashlib.sha256(b"" if home is None else os.fsencode(home.resolve())).hexdigest()[:16]
        parent = Path(tempfile.gettempdir()) / f"rollog-{os.geteuid()}-{digest}"
        if _is_too_long(parent):
            raise ConfigError(
                f"{parent} is too long a path for vLLM's sockets (at most {max_path_bytes} bytes with "
                f"{1 + 2 * _name_bytes} more); name a shorter state directory with --home, or set TMPDIR"
            )
    make_private(parent)
    _require_private(parent)
    return parent


def _is_too_long(parent: Path) -> bool:
    return len(os.fsencode(parent)) + 1 + 2 * _name_bytes > max_path_bytes


def _require_private(directory: Path) -> None:
    """Everybody may write to the temp directory: what stands there under our name may be somebody else's."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{directory} (mode {stat.S_IMODE(found.st_mode):04o}, user {found.st_uid}) is for vLLM's sockets and must "
            f"be a directory of user {os.geteuid()} with mode 0700: remove it, or `chmod 700` it if it is yours"
        )


def _remove_leftovers(parent: Path) -> None:
    """Call it with the parent locked: then every directory of a living worker has its lock held."""
    for directory in sorted(each for each in parent.iterdir() if each.is_dir() and not each.is_symlink()):
        lock = _open_lock(directory / _lock_name)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            log.info("sockets of a worker that was killed removed", directory=directory)
            _remove(directory)
        finally:
            os.close(lock)


def _remove(directory: Path) -> None:
    def tell(_: object, path: str, error: BaseException) -> None:
        if not isinstance(error, FileNotFoundError):  # its owner removes a socket as it ends
            log.warning("a file beside vLLM's sockets could not be removed", path=path, error=error)

    shutil.rmtree(directory, onerror=lambda function, path, info: tell(function, path, info[1]))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = _open_lock(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
