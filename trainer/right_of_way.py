"""Who goes first, where training waits for some of what a trainer does at the same time, and for the rest nobody does.

| goes first | waits meanwhile |
| --- | --- |
| `copying`: weights, or state for a checkpoint, before training goes on | versions and checkpoints, written |
| `awaited`: a version that training waits for | checkpoints, written |

All take processors, memory bandwidth and the disk from each other.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class RightOfWay:
    """One for each process that trains. One thread goes first, any may give way.

    Whoever goes first for longer than `longest_seconds` is slowed down from then on: with a slow store training waits
    for a version most of the time, and checkpoints shall come.
    """

    def __init__(self, *, longest_seconds: float = 10.0) -> None:
        self._copies = _Turn(longest_seconds)
        self._versions = _Turn(longest_seconds)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Copy for training to go on, until the block is done."""
        with self._copies.taken():
            yield

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Wait for a version, until the block is done."""
        with self._versions.taken():
            yield

    def give_to_copies(self) -> None:
        """Wait while somebody copies. For who writes a version."""
        self._copies.wait()

    def give(self) -> None:
        """Wait while somebody goes first. For who writes a checkpoint."""
        self._copies.wait()
        self._versions.wait()


class _Turn:
    """Of one kind: nobody's, or somebody's since a moment."""

    def __init__(self, longest_seconds: float) -> None:
        self._longest_seconds = longest_seconds
        self._is_free = threading.Event()
        self._is_free.set()
        self._ends_at = 0.0

    @contextmanager
    def taken(self) -> Iterator[None]:
        self._ends_at = time.monotonic() + self._longest_seconds
        self._is_free.clear()
        try:
            yield
        finally:
            self._is_free.set()

    def wait(self) -> None:
        if not self._is_free.is_set():
            self._is_free.wait(max(0.0, self._ends_at - time.monotonic()))
