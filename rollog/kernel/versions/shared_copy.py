"""One copy of a version for all workers of a run on one machine, in the run's directory of shared memory.

    /dev/shm/rollog-<user>-<run>/copies/
        lock                     held for a moment by who makes a generation or removes one
        000001-<random>/         the newest generation: the files of `VersionCopy`, and a lock

| who | holds the lock of the generation |
| --- | --- |
| fetches a version or patches the copy | alone |
| is going to load the version that is here | together with others, until `release` |
| waits | not at all, and looks again every now and then |

The system frees a lock when its holder dies; the next one finds in the directory what is left (`VersionCopy`). A holder
that is alive touches the lock's file every second. Who waits for one that has not done so for `patience_seconds`,
because it was stopped, begins a new generation and removes the old one, whose name never comes back: nobody sees what
the stopped one does there later.

A worker asks for a version that it has read committed itself, and loads no other. A copy that is further ahead belongs
to one that has read more: `CopyAhead` says so. Whoever cannot have the copy (`CopyBusy`, `NoRoomForCopy`, OSError) does
without.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import threading
import time
from typing import TYPE_CHECKING

from rollog.kernel.errors import WeightsError
from rollog.kernel.file_lock import open_lock
from rollog.kernel.logs import get_logger
from rollog.kernel.shared_memory import copies_name, free_memory_bytes, open_private
from rollog.kernel.versions.chains import VersionPair
from rollog.kernel.versions.copies import NoRoomForCopy, VersionCopy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from schemas.weights import WeightVersion

_log = get_logger("weights")
_generation_name = re.compile(r"[0-9]{6,}-[0-9a-f]{16}")
_lock_name = "lock"
_look_seconds = 0.02
_touch_seconds = 1.0


class CopyAhead(WeightsError):
    """The copy of this machine is at a later version than the one that is asked for."""


class CopyBusy(WeightsError):
    """Others that are alive keep the copy where it is."""


class SharedCopy:
    """The copy that the workers of this machine have together, as one of them uses it. For one thread, but for `stop`.

    `shared` is the run's directory; `free_bytes` tells the room there. Readers that keep the copy at another version
    are waited for `busy_seconds`; who fetches or patches is waited for as long as it is alive.
    """

    def __init__(
        self,
        shared: Path,
        *,
        free_bytes: Callable[[Path], int] = free_memory_bytes,
        patience_seconds: float = 10.0,
        busy_seconds: float = 30.0,
    ) -> None:
        self._shared = shared
        self._free_bytes = free_bytes
        self._patience_seconds = patience_seconds
        self._busy_seconds = busy_seconds
        self._generation: _Generation | None = None
        self._is_held = False
        self._stopping = threading.Event()

    def bring(self, notice: WeightVersion, bring: Callable[[VersionCopy], object]) -> Path:
        """Have exactly the version of a notice here and keep it until `release`; returns the path of its manifest.

        `bring` takes a copy that is this caller's alone to the version. Raises WeightsError, OSError.
        """
        self.release()
        wanted = VersionPair(notice.version, notice.sha256)
        wait = _Wait(self._patience_seconds, self._busy_seconds)
        while True:
            generation = self._newest()
            if self._take(generation, wanted, bring):
                return generation.copy.path
            if wait.is_stopped(generation):
                _log.warning(
                    "whoever holds the copy of this machine does nothing, a new one is made",
                    directory=str(generation.directory),
                    seconds=self._patience_seconds,
                )
                self._replace(generation.directory.name)
            if self._stopping.wait(_look_seconds):
                raise WeightsError("this worker ends")

    def release(self) -> None:
        """Let others take the copy to another version."""
        if self._generation is not None:
            self._generation.readers_since = None
            if self._is_held:
                self._generation.unlock()
        self._is_held = False

    def discard(self) -> None:
        """Have the version that is kept no more, unless others load it; release it."""
        if self._is_held and self._generation is not None and self._generation.lock(fcntl.LOCK_EX):
            self._generation.copy.invalidate()
        self.release()

    def stop(self) -> None:
        """Wait no longer. Any thread may say so."""
        self._stopping.set()

    def close(self) -> None:
        """Release the copy; others may go on with it."""
        self.release()
        if self._generation is not None:
            self._generation.close()
            self._generation = None

    def _take(
        self, generation: _Generation, wanted: VersionPair, bring: Callable[[VersionCopy], object]
    ) -> bool:
        """Have the version, and the lock together with others; False where one has to wait. Raises CopyAhead."""
        if self._has(generation, wanted):
            return True
        if not generation.lock(fcntl.LOCK_EX):
            return False
        try:
            if self._is_newest(generation):
                generation.hold()
                _require_not_ahead(generation.copy, wanted)
                self._bring(generation.copy, bring)
                # The system may let somebody else in between: then all of this is done again.
                self._is_held = generation.lock(fcntl.LOCK_SH) and generation.copy.pair == wanted
        finally:
            if not self._is_held:
                generation.unlock()
            self._remove_if_old(generation)
        return self._is_held

    def _has(self, generation: _Generation, wanted: VersionPair) -> bool:
        if not generation.lock(fcntl.LOCK_SH):
            return False
        try:
            if self._is_newest(generation):
                _require_not_ahead(generation.copy, wanted)
                if generation.copy.pair == wanted:
                    generation.hold()
                    self._is_held = generation.copy.has(wanted)
        finally:
            if not self._is_held:
                generation.unlock()
        return self._is_held

    def _bring(self, copy: VersionCopy, bring: Callable[[VersionCopy], object]) -> None:
        try:
            bring(copy)
        except NoRoomForCopy:
            copy.discard()  # nobody could follow with it
            raise

    def _newest(self) -> _Generation:
        """The newest generation, made where there is none."""
        os.close(open_private(self._shared, make=True))
        os.close(open_private(self._shared / copies_name, make=True))
        name = self._newest_name() or self._replace("")
        if self._generation is None or self._generation.directory.name != name:
            self.close()
            self._generation = _Generation(self._shared / copies_name / name, self._free_bytes)
        return self._generation

    def _newest_name(self) -> str:
        names = [path.name for path in (self._shared / copies_name).iterdir()]
        return max(filter(_generation_name.fullmatch, names), key=_number_of, default="")

    def _is_newest(self, generation: _Generation) -> bool:
        return self._newest_name() == generation.directory.name

    def _replace(self, old: str) -> str:
        """Make the generation after `old`, unless somebody else has; returns the name of the newest."""
        lock = open_lock(self._shared / copies_name / _lock_name)
        try:
            self._wait_for(lock)
            name = self._newest_name()
            if name == old:
                number = _number_of(old) + 1 if old else 1
                name = f"{number:06}-{secrets.token_hex(8)}"
                (self._shared / copies_name / name).mkdir(mode=0o700)
            for other in (self._shared / copies_name).iterdir():
                if _generation_name.fullmatch(other.name) and other.name != name:
                    shutil.rmtree(other, ignore_errors=True)
        finally:
            os.close(lock)
        return name

    def _wait_for(self, lock: int) -> None:
        """Hold a lock that nobody holds for long. Raises CopyBusy where somebody was stopped over it."""
        until = time.monotonic() + self._patience_seconds
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise CopyBusy(f"somebody holds {self._shared / copies_name / _lock_name}") from None
            if self._stopping.wait(_look_seconds):
                raise WeightsError("this worker ends")

    def _remove_if_old(self, generation: _Generation) -> None:
        """A holder that was stopped and goes on may have made files again where its generation was."""
        if not self._is_newest(generation):
            self.release()
            shutil.rmtree(generation.directory, ignore_errors=True)


def _number_of(name: str) -> int:
    return int(name.partition("-")[0])


def _require_not_ahead(copy: VersionCopy, wanted: VersionPair) -> None:
    if copy.pair is not None and copy.pair.version > wanted.version:
        raise CopyAhead(
            f"the copy of this machine is at version {copy.pair.version} already, not {wanted.version}"
        )


class _Generation:
    """One directory with a copy, and its lock, which is touched as long as it is held."""

    def __init__(self, directory: Path, free_bytes: Callable[[Path], int]) -> None:
        self.directory = directory
        self.copy = VersionCopy(directory, free_bytes=free_bytes)
        self.readers_since: float | None = None
        """Since when, without a pause, others have only been reading."""
        self._lock = open_lock(directory / _lock_name)
        self._is_held = threading.Event()
        self._is_closed = threading.Event()
        self._toucher = threading.Thread(target=self._touch, name="touch-copy", daemon=True)
        self._toucher.start()

    def lock(self, kind: int) -> bool:
        """Whether the lock is to be had at once; one of the other kind is changed into it, and lost where not."""
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if kind == fcntl.LOCK_SH:
                self.readers_since = None
            elif self.readers_since is None:
                self.readers_since = time.monotonic()
            return False
        return True

    def hold(self) -> None:
        """Show that the holder is alive, until `unlock`. Who only looks does not: others may wait for a reader."""
        self.readers_since = None
        os.utime(self._lock)
        self._is_held.set()

    def unlock(self) -> None:
        """Give the lock back."""
        self._is_held.clear()
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def touched(self) -> int:
        """What changes as long as a holder is alive."""
        return os.fstat(self._lock).st_mtime_ns

    def close(self) -> None:
        """Give the lock back and end."""
        self._is_closed.set()
        self._is_held.set()
        self._toucher.join()
        os.close(self._lock)

    def _touch(self) -> None:
        while not self._is_closed.wait(_touch_seconds):
            self._is_held.wait()
            os.utime(self._lock)


class _Wait:
    """How long somebody waits for a lock."""

    def __init__(self, patience_seconds: float, busy_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._busy_seconds = busy_seconds
        self._touched = 0
        self._since = time.monotonic()

    def is_stopped(self, generation: _Generation) -> bool:
        """Whether nobody alive holds the lock. Raises CopyBusy where readers that are alive have it for too long."""
        now = time.monotonic()
        if (touched := generation.touched()) != self._touched:
            self._touched, self._since = touched, now
        if now - self._since > self._patience_seconds:
            self._since = now
            return True
        since = generation.readers_since
        if since is not None and now - since > self._busy_seconds:
            raise CopyBusy(f"others load another version from {generation.directory}")
        return False
