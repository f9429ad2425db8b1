"""Who runs the roles of a run on this machine: one `rollog up` or `rollog resume`, which holds a lock on its directory.

A role that somebody starts beside it by hand would take over from the one that is at work, whose supervisor starts no
superseded role again: the run would end as soon as the mistake is undone. So it is refused before it does anything.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError
from rollog.kernel.private_directory import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_lock_name = "supervisor.lock"
_look_seconds = 0.5
"""How long a role that only looks at the lock may be in the way; far more than it takes."""
_tick_seconds = 0.02


@contextmanager
def sole_supervisor(directory: Path, run: str) -> Iterator[None]:
    """Hold a run's directory: two that started its roles would supersede each other's for ever. Raises ConfigError."""
    make_private(directory)
    with (directory / _lock_name).open("a+") as lock:
        if not _is_taken(lock.fileno()):
            raise ConfigError(
                f"run {run} is under way here already: process {_holder(directory)} runs its roles and holds "
                f"{lock.name}; see it with `rollog watch --run {run}`, or stop that process first"
            )
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def refuse_beside_supervisor(directory: Path, run: str, role: str) -> None:
    """Raises ConfigError where another process than the one that started this runs the roles of the run here."""
    try:
        with (directory / _lock_name).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return
    except BlockingIOError as error:
        holder = _holder(directory)
        if holder == str(os.getppid()):
            return
        raise ConfigError(
            f"run {run} is under way here already: process {holder} runs its {role} and holds "
            f"{directory / _lock_name}; a second {role} would take over from it, so end that process first, "
            f"or see it with `rollog watch --run {run}`"
        ) from error


def _is_taken(descriptor: int) -> bool:
    """Whether the lock could be taken; a role that looks at it is waited for."""
    deadline = time.monotonic() + _look_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_tick_seconds)
        else:
            return True


def _holder(directory: Path) -> str:
    """The process id that the holder wrote."""
    return (directory / _lock_name).read_text().strip()
