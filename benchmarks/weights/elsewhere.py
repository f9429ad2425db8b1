"""A store that is not on this disk, as trainer and workers see one: they upload, and download what they need.

Its objects are files of this disk under an fsspec protocol of their own. All who use it in this process share one
channel, which counts what is moved and may hold a rate, whichever way the bytes go.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import IO, TYPE_CHECKING, Any, ClassVar, Self

import fsspec
from fsspec.implementations.local import LocalFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_turn_bytes = 256 << 10
"""What one side moves before it is the other's turn."""


class Channel:
    """Bytes on their way to and from a store; with `bytes_per_second` they take their time. For several threads."""

    def __init__(
        self,
        bytes_per_second: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._is_free_at = clock()
        self.num_written = 0
        self.num_read = 0

    def write(self, num_bytes: int) -> None:
        """Return when so many bytes have arrived in the store."""
        self._pass(num_bytes)
        with self._lock:
            self.num_written += num_bytes

    def read(self, num_bytes: int) -> None:
        """Return when so many bytes have come from the store."""
        self._pass(num_bytes)
        with self._lock:
            self.num_read += num_bytes

    def _pass(self, num_bytes: int) -> None:
        if self._bytes_per_second is None:
            return
        while num_bytes:
            turn = min(num_bytes, _turn_bytes)
            with self._lock:
                now = self._clock()
                # Nobody saves up what was not used before.
                self._is_free_at = max(self._is_free_at, now) + turn / self._bytes_per_second
                wait = self._is_free_at - now
            self._sleep(wait)
            num_bytes -= turn


class _File:
    """A file that is read through the channel."""

    def __init__(self, file: IO[bytes], channel: Channel) -> None:
        self._file = file
        self._channel = channel

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._channel.read(len(data))
        return data

    def readinto(self, memory: memoryview) -> int:
        num_bytes: int = self._file.readinto(memory)  # type: ignore[attr-defined]  # typing.IO does not know it
        self._channel.read(num_bytes)
        return num_bytes

    def close(self) -> None:
        self._file.close()


class _Elsewhere(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files of this disk under another protocol."""

    cachable = False
    channel: ClassVar[Channel]

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix(f"{cls.protocol}://"))

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self.channel.write(len(value))
        super().pipe_file(path, value, **options)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super()._open(path, mode, **options)
        return _File(file, self.channel) if mode == "rb" else file


def store_elsewhere(directory: Path, channel: Channel) -> str:
    """The address of a store whose files lie in `directory`; it leads there in this process alone."""
    protocol = f"elsewhere{secrets.token_hex(4)}"
    kind = type("Elsewhere", (_Elsewhere,), {"protocol": protocol, "channel": channel})
    fsspec.register_implementation(protocol, kind)
    return f"{protocol}://{directory.resolve()}"
