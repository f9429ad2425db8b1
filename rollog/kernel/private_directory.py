"""Directories that only their user may enter, and files that nobody else may write."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

writable_by_others = stat.S_IWGRP | stat.S_IWOTH
"""The mode bits by which others than a file's user may write it."""


def make_private(directory: Path) -> None:
    """Make a directory with mode 0700, whatever the umask; one that exists keeps its mode.

    Parents that are missing are made so, too. Raises OSError.
    """
    for parent in reversed((directory, *directory.parents)):
        if not parent.is_dir():
            parent.mkdir(mode=0o700, exist_ok=True)
            parent.chmod(0o700)


def only_for_me(directory: Path) -> None:
    """Take the right to write in a directory, and to what it holds, from everybody else, whatever umask wrote it."""
    for path in (directory, *directory.rglob("*")):
        path.chmod(path.stat().st_mode & ~writable_by_others)
