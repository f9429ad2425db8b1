"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

partial_name = re.compile(r"\.partial-[0-9a-f]{16}")
"""Names of files whose writer is at work, or died before it was done."""


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when the block is done and it is on disk. Raises ConfigError."""
    if path.exists():
        raise ConfigError(f"{path} exists already; name another file, or remove it")
    partial = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror or error}); name a file in a directory with room"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def new_partial_name() -> str:
    """A name for a file that is not whole yet."""
    return f".partial-{secrets.token_hex(8)}"


@contextmanager
def partial_file(directory: Path) -> Iterator[Path]:
    """A name to write to before renaming; removed if the caller fails."""
    path = directory / new_partial_name()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def make_durable(directory: Path) -> None:
    """Make a directory with its parents so that a loss of power leaves their names; nothing where it is there."""
    made = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for each in made:
        sync_path(each.parent)


def sync_path(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
