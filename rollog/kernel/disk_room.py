"""Full disks: noticed where a process meets one, and told with the place and the remedy.

A system call that fails for want of room seldom names its file, and what a process would log about it often goes to
that very disk. So whoever watches a process looks at the disk itself.
"""

from __future__ import annotations

import errno
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rollog.kernel.errors import DiskFull

if TYPE_CHECKING:
    from collections.abc import Iterator

least_free_bytes = 1 << 20
"""With less nothing of a run can be written: a step's weights and a segment of the log need more."""
_full = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: OSError) -> bool:
    """Whether a system call failed because a disk, or a user's share of it, has no room left."""
    return error.errno in _full


def free_bytes(place: str | Path) -> int:
    """What the disk has free on which a file at `place` would be, which need not exist yet."""
    path = Path(place).resolve()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def no_room(place: Path, *, least_free_bytes: int = least_free_bytes) -> str | None:
    """A sentence with the remedy where the disk of `place` has less room left than that, None where it has."""
    try:
        num_free = shutil.disk_usage(place).free
    except OSError:
        return None
    if num_free >= least_free_bytes:
        return None
    return f"no room left on the disk of {place} ({num_free} bytes are free): make room there, and start it again"


@contextmanager
def naming_full_disk(place: Path) -> Iterator[None]:
    """Turn an OSError about a full disk into DiskFull; `place` is where the block writes.

    PyTorch's own writers say RuntimeError for it: that counts where the disk is full.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        said = no_room(place)
        if isinstance(error, OSError) and is_full(error):
            said = said or f"make room for what is written below {place}"
        elif said is None or isinstance(error, OSError):
            raise
        raise DiskFull(f"{error}; {said}") from error
