"""Work on another thread that can be abandoned, because nobody waits for its result any more.

Starting an engine means importing large libraries and building a model: up to minutes on one thread, which offer no
way to end them. An exception set from outside ends such work at its next Python instruction.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollog.kernel.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_again_seconds = 0.2
_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Abandoned(BaseException):
    """Raised inside the work that is abandoned; no `except Exception` on the way stops it."""


class Start:
    """The start of one engine, on whatever thread does it."""

    def __init__(self) -> None:
        self._thread_id: int | None = None
        self._lock = threading.Lock()
        self._is_over = False
        self._ended = threading.Event()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """The thread that enters this is starting the engine. Raises EngineError when it was abandoned."""
        self._thread_id = threading.get_ident()
        try:
            try:
                yield
            finally:
                self._end()
        except Abandoned:
            self._end()  # which may have been what was interrupted
            raise EngineError("the engine was closed while it was starting") from None

    def _end(self) -> None:
        """When this returns, no Abandoned is on its way to this thread any more.

        None is set once the start is over, and one set before is raised at the next call or jump: inside of here.
        Taking it back instead (by setting NULL) leaves CPython 3.11 with a signal that nobody clears, and a traced
        thread, as under a debugger or coverage, turns round on it for ever.
        """
        while not self._ended.is_set():
            try:
                with self._lock:
                    self._is_over = True
                self._ended.set()
            except Abandoned:
                continue

    def abandon(self, end_children: Callable[[], None]) -> None:
        """If the start is under way, return when it has ended; call this from another thread.

        Abandoned is raised there until then, again and again because code on its way may swallow it, and
        `end_children` is called, to end what the start may wait for outside of this process.
        """
        if self._thread_id is None:
            return
        thread = ctypes.c_ulong(self._thread_id)
        while not self._ended.is_set():
            end_children()
            with self._lock:
                if not self._is_over:
                    _set_exception(thread, ctypes.py_object(Abandoned))
            self._ended.wait(_again_seconds)
