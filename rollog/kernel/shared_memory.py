"""The directory of shared memory that the roles of one run have together on one machine.

    /dev/shm/rollog-<user>-<run>/      mode 0700
        workers                        a lock that each worker holds as long as it lives; the system frees it
        lane/                          files of the newest versions: `rollog.kernel.versions.lane`
        copies/                        the workers' copy of a version: `rollog.kernel.versions.shared_copy`

`<run>` is a digest of what names a run: two runs have nothing in common. A file counts once somebody of this user
has compared it with a digest of the log; a directory or file of another user, a link, or one that others may enter, is
not used at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rollog.kernel.file_lock import open_lock
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = get_logger("shared memory")
_usual_place = Path("/dev/shm")  # noqa: S108  # what is made there is private, and checked before it is used
_workers_lock = "workers"
copies_name = "copies"
_kept_share = 0.1
"""Of the machine's memory, or of what this process may have of it: so much is left to others."""
_meminfo = Path("/proc/meminfo")
_control_group = Path("/sys/fs/cgroup")


def shared_directory(place: str, *named: str) -> Path | None:
    """The directory of a run below a place: `auto`, `off` or a directory; `named` says which run it is.

    None where there is to be none. Nothing is made.
    """
    if place == "off" or (place == "auto" and not os.access(_usual_place, os.W_OK | os.X_OK)):
        return None
    run = hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]
    return (_usual_place if place == "auto" else Path(place)) / f"rollog-{os.geteuid()}-{run}"


def is_in_shared_memory(file: os.stat_result) -> bool:
    """Whether a file is in the system's usual place for it."""
    try:
        return file.st_dev == _usual_place.stat().st_dev
    except OSError:
        return False


def open_private(directory: Path, *, make: bool = False) -> int:
    """A descriptor of a directory that this user alone may enter, and that is no link; made with `make`.

    Raises OSError, and PermissionError for a directory that may be anybody's.
    """
    if make:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(descriptor)
        raise PermissionError(
            f"{directory} is not used: it is not this user's alone (mode {stat.S_IMODE(found.st_mode):04o})"
        )
    return descriptor


def free_memory_bytes(
    directory: Path, *, meminfo: Path = _meminfo, control_group: Path = _control_group
) -> int:
    """What may be written to a directory of shared memory, so that enough is left for everybody else; 0 for nothing.

    Counted are the room there, the memory that the machine can give, and the limit of this process's container.
    """
    room = os.statvfs(directory)
    limits = (*_left_by_machine(meminfo), *_left_by_container(control_group))
    return max(0, min([room.f_bavail * room.f_frsize, *limits]))


def _left_by_machine(meminfo: Path) -> Iterator[int]:
    with suppress(OSError, KeyError, ValueError):
        kilobytes = {line.partition(":")[0]: line.split()[1] for line in meminfo.read_text().splitlines()}
        total, available = (1024 * int(kilobytes[name]) for name in ("MemTotal", "MemAvailable"))
        yield available - int(_kept_share * total)


def _left_by_container(control_group: Path) -> Iterator[int]:
    with suppress(OSError, KeyError, ValueError):  # no second version of control groups, or no limit: "max"
        limit = int((control_group / "memory.max").read_text())
        used = int((control_group / "memory.current").read_text())
        counts = dict(line.split() for line in (control_group / "memory.stat").read_text().splitlines())
        # Files that were read or written count as used, and are given up for others.
        used -= int(counts["inactive_file"]) + int(counts["active_file"])
        yield limit - used - int(_kept_share * limit)


def has_workers(directory: Path) -> bool:
    """Whether a worker of the run lives on this machine."""
    try:
        lock = os.open(directory / _workers_lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def remove_copies(directory: Path) -> None:
    """Remove the copies of workers that were killed; nothing while a worker lives."""
    with suppress(OSError):
        lock = os.open(directory / _workers_lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory / copies_name, ignore_errors=True)
        finally:
            os.close(lock)


class WorkerPresence:
    """A worker is on this machine as long as this is entered: the trainer writes to shared memory for it.

    Where the directory cannot be had, the worker does without. The last one that leaves removes the copies, and the
    directory, if it is empty then. Where all of a run were killed, the next worker of this user, of whatever run, does.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / _workers_lock
        self._lock = -1

    def __enter__(self) -> Self:
        try:
            self._enter()
        except OSError as error:
            _log.warning("shared memory is not used", directory=str(self._directory), error=str(error))
        return self

    def __exit__(self, *_: object) -> None:
        lock, self._lock = self._lock, -1
        if lock < 0:
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._directory / copies_name, ignore_errors=True)
            self._path.unlink()
            self._directory.rmdir()
        except OSError:
            pass  # others are there, or files that somebody else removes
        finally:
            os.close(lock)

    def _enter(self) -> None:
        for directory in self._directory.parent.glob(f"rollog-{os.geteuid()}-*"):
            with suppress(OSError):
                os.close(open_private(directory))
                remove_copies(directory)
        while True:
            os.close(open_private(self._directory, make=True))
            lock = open_lock(self._path)
            fcntl.flock(lock, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if self._path.stat().st_ino == os.fstat(lock).st_ino:
                    self._lock = lock
                    return
            # The last worker before this one removed the file between opening and locking.
            os.close(lock)
