"""Whose files may be unpickled: loading a pickle runs code, so only the run's own user may have written it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from rollog.kernel.errors import DataError
from rollog.kernel.private_directory import writable_by_others

if TYPE_CHECKING:
    from pathlib import Path


def require_own_files(directory: Path) -> None:
    """Raise DataError unless `directory`, its parent and everything in it is this user's (or root's) to write alone.

    Links are refused: what they point to may be exchanged.
    """
    for path in (directory.parent, directory, *sorted(directory.rglob("*"))):
        _require_own(path)


def _require_own(path: Path) -> None:
    found = path.lstat()
    user = os.geteuid()
    if stat.S_ISLNK(found.st_mode):
        raise DataError(
            f"{path} is a link: a checkpoint is loaded as a pickle, which runs code, and is never followed elsewhere; "
            "put the file itself there, or remove that checkpoint"
        )
    if found.st_uid not in {user, 0}:
        raise DataError(
            f"{path} belongs to user {found.st_uid}, this process to {user}: a checkpoint is loaded as a pickle, which "
            "runs code; remove it, or give it to the run's user (chown) if you know who wrote it"
        )
    if found.st_mode & writable_by_others:
        raise DataError(
            f"{path} (mode {stat.S_IMODE(found.st_mode):04o}, user {found.st_uid}) can be written by others: a "
            "checkpoint is loaded as a pickle, which runs code; if nobody changed it, take the right away with "
            f"`chmod go-w {path}`, else remove it"
        )
