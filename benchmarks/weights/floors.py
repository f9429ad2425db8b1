"""What the machine needs at least to copy, hash, write or read so many bytes: the floors that figures stand beside.

Buffers are small, so that a floor changes no figure of memory. What depends on nothing but the number of bytes is
measured with at most 2 GB, and its time taken as often as there are more.
"""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO
    from pathlib import Path

    from schemas.arrays import UInt8Array

_most_bytes = 2_000_000_000
_piece_bytes = 16 << 20
_buffer_bytes = 4 * _piece_bytes


def copy_seconds(num_bytes: int, *, num_threads: int | None = None) -> float:
    """One copy from memory to memory that is there, on all processors."""
    source, target = _random_bytes(), np.zeros(_buffer_bytes, np.uint8)
    return _seconds_of_pieces(
        num_bytes, lambda part: np.copyto(target[part], source[part]), num_threads=num_threads
    )


def sha256_seconds(num_bytes: int) -> float:
    """The sha256 of pieces of 16 MiB, on all processors."""
    source = _random_bytes()
    return _seconds_of_pieces(num_bytes, lambda part: hashlib.sha256(source[part].data))


def write_seconds(num_bytes: int, path: Path) -> float:
    """One write of a new file, and its sync; the file is removed."""
    source = _random_bytes()
    began = time.perf_counter()
    with path.open("xb", buffering=0) as file:
        _write(num_bytes, file, source)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def read_seconds(num_bytes: int, path: Path) -> float:
    """One read of a file that was just written; the file is removed."""
    with path.open("xb", buffering=0) as file:
        _write(num_bytes, file, _random_bytes())
    target = mmap(-1, _piece_bytes)  # on a page: elsewhere some processors take four times as long
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(target):
            pass
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def _write(num_bytes: int, file: FileIO, source: UInt8Array) -> None:
    while num_bytes:
        num_bytes -= file.write(source[: min(num_bytes, _piece_bytes)].data)


def _seconds_of_pieces(
    num_bytes: int, do: Callable[[slice], object], *, num_threads: int | None = None
) -> float:
    """Do as much as `num_bytes` are, piece by piece of a buffer, and say how long that takes."""
    done = min(num_bytes, _most_bytes)
    starts = range(0, done, _piece_bytes)
    parts = [
        slice(start % _buffer_bytes, start % _buffer_bytes + min(_piece_bytes, done - start))
        for start in starts
    ]
    with ThreadPoolExecutor(num_threads or os.cpu_count() or 1) as pool:
        # The threads are there before time counts.
        list(pool.map(do, parts[:4]))
        began = time.perf_counter()
        list(pool.map(do, parts))
        seconds = time.perf_counter() - began
    return seconds * num_bytes / done if done else 0.0


def _random_bytes() -> UInt8Array:
    return np.random.default_rng(0).integers(0, 256, _buffer_bytes, dtype=np.uint8)
