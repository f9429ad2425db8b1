"""Who goes first, where training waits for some of what a trainer does at the same time, and for the rest nobody does.

| goes first | waits meanwhile |
| --- | --- |
| `copying`: weights, or state for a checkpoint, before training goes on | versions and checkpoints, written |
| `awaited`: a version, before the next one can be sealed | checkpoints, written |

All take processors, memory bandwidth and the disk from each other.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


class RightOfWay:
    """One for each engine that trains, in its process. One thread goes first, any may give way.

    Whoever gives way waits for at most `longest_seconds` of a turn, and then goes on for as long as it has waited
    before it waits again. So a checkpoint is written in half of the time at least, also where training waits for a slow
    store all the time.
    """

    def __init__(self, *, longest_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._copies = _Turn(longest_seconds, clock)
        self._versions = _Turn(longest_seconds, clock)

    def copying(self) -> AbstractContextManager[None]:
        """Copy for training to go on, until the block is done."""
        return self._copies.taken()

    def awaited(self) -> AbstractContextManager[None]:
        """Wait for a version, until the block is done."""
        return self._versions.taken()

    def give_to_copies(self) -> None:
        """Wait while somebody copies. For who writes a version."""
        self._copies.wait()

    def give(self) -> None:
        """Wait while somebody goes first. For who writes a checkpoint."""
        self._copies.wait()
        self._versions.wait()


class _Turn:
    """Of one kind: nobody's, or somebody's since a moment."""

    def __init__(self, longest_seconds: float, clock: Callable[[], float]) -> None:
        self._longest_seconds = longest_seconds
        self._clock = clock
        self._is_free = threading.Event()
        self._is_free.set()
        self._ends_at = 0.0
        self._waits_from = clock()
        """Until then nobody waits again."""

    @contextmanager
    def taken(self) -> Iterator[None]:
        self._ends_at = self._clock() + self._longest_seconds
        self._is_free.clear()
        try:
            yield
        finally:
            self._is_free.set()

    def wait(self) -> None:
        began = self._clock()
        if self._is_free.is_set() or not self._waits_from <= began < self._ends_at:
            return
        self._is_free.wait(self._ends_at - began)
        ended = self._clock()
        self._waits_from = ended + (ended - began)
