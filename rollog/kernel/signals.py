"""Ends of a process asked for from outside: the first signal is graceful, later ones are not."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Self

from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from types import FrameType

_numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_import_machinery = "<frozen importlib._bootstrap>"
_pause_seconds = 0.02


class StopSignals(Component):
    """While active, SIGINT, SIGTERM and SIGHUP set `stop`.

    After `num_graceful` of them the next one ends the process. To be used in the main thread.
    """

    def __init__(self, *, num_graceful: int = 1) -> None:
        self.stop = threading.Event()
        self.received: list[int] = []
        self._num_graceful = num_graceful
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._receive) for number in _numbers}
        return self

    def close(self) -> None:
        """Give the signals back to whoever had them before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned itself
        self._previous.clear()

    @property
    def in_a_hurry(self) -> bool:
        """Whether a second signal came."""
        return len(self.received) > 1

    @property
    def exit_status(self) -> int:
        """0 without a signal, else what a shell reports for the first one."""
        return 128 + self.received[0] if self.received else 0

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received.append(number)
        self.stop.set()
        if len(self.received) >= self._num_graceful:
            for each in _numbers:
                signal.signal(each, signal.SIG_DFL)


def exit_on_sigterm(*, longest_import_seconds: float = 10.0) -> None:
    """Let SIGTERM unwind this process like Ctrl-C does; one that comes within an import, when that is over.

    What a module calls while it is imported may drop the exit, or make another error of it. An import that takes longer
    than `longest_import_seconds` is left nevertheless.
    """
    leave_at: float | None = None

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal leave_at
        now = time.monotonic()
        leave_at = leave_at or now + longest_import_seconds
        if now < leave_at and _is_importing(frame):
            # Not `threading`: this thread may hold its locks.
            _thread.start_new_thread(_send_again, (number,))
            return
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _import_machinery:
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    time.sleep(_pause_seconds)
    os.kill(os.getpid(), number)
