"""Where vLLM's processes keep their sockets and temporary files: a private directory per worker, gone with it.

It is HOME/runs/RUN/sockets/3f9a61c2, or where that path is too long for a socket
TMP/rollog-1000-<digest of HOME/runs/RUN>/3f9a61c2; rollog.kernel.process_directory makes and removes it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

from rollog.kernel.errors import ConfigError
from rollog.kernel.private_directory import make_private
from rollog.kernel.process_directory import ProcessDirectory

max_path_bytes = 70
"""Of a directory: a socket's path has room for 107 bytes, and vLLM adds a slash and 36 characters."""
_name_bytes = 4


def socket_directory(home: Path | None) -> ProcessDirectory:
    """One worker's directory for sockets and temporary files.

    Below `home`, or where there is none below the temp directory. Raises ConfigError, OSError.
    """
    return ProcessDirectory(_parent(home), secrets.token_hex(_name_bytes))


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
