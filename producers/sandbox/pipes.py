"""Input and output of one command, over pipes that nothing else has."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_drain_seconds = 1.0
"""What a command left in its pipes is read within this time; the rest is whoever's it gave its pipes to."""


class Capture:
    """Standard output and error, kept up to a number of bytes together; then `on_full` is called once."""

    def __init__(self, most_bytes: int, on_full: Callable[[], None]) -> None:
        self._room = most_bytes
        self._on_full = on_full
        self._is_full = False
        self.streams = (_Stream(self), _Stream(self))

    def keep(self, data: bytes) -> bytes:
        """As much of `data` as there is room for."""
        kept = data[: self._room]
        self._room -= len(kept)
        if len(kept) < len(data) and not self._is_full:
            self._is_full = True
            self._on_full()
        return kept


class _Stream(asyncio.Protocol):
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._data = bytearray()
        self.ended = asyncio.get_running_loop().create_future()

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    def data_received(self, data: bytes) -> None:
        self._data += self._capture.keep(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self.ended.done():
            self.ended.set_result(None)


class _Writer(asyncio.BaseProtocol):
    is_lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.is_lost = True


def _same(stream: _Stream) -> _Stream:
    return stream


class CommandPipes:
    """Three pipes: this process's ends are served by the loop, the others are `theirs` until `hand_over`."""

    def __init__(self, most_bytes: int, on_full: Callable[[], None]) -> None:
        self._capture = Capture(most_bytes, on_full)
        self._readers: list[asyncio.BaseTransport] = []
        self._writer: asyncio.WriteTransport | None = None
        self._written = _Writer()
        self.theirs: tuple[int, ...] = ()

    async def open(self, stdin: bytes) -> None:
        """Make the pipes, and begin to write `stdin` and to read both others."""
        loop = asyncio.get_running_loop()
        pairs = [os.pipe() for _ in range(3)]
        self.theirs = (pairs[0][0], pairs[1][1], pairs[2][1])
        self._writer, _ = await loop.connect_write_pipe(
            lambda: self._written, os.fdopen(pairs[0][1], "wb", 0)
        )
        for (ours, _), stream in zip(pairs[1:], self._capture.streams, strict=True):
            reader, _ = await loop.connect_read_pipe(partial(_same, stream), os.fdopen(ours, "rb", 0))
            self._readers.append(reader)
        self._writer.write(stdin)
        self._writer.write_eof()

    def hand_over(self) -> None:
        """Close the command's ends here; it has its own."""
        for descriptor in self.theirs:
            os.close(descriptor)
        self.theirs = ()

    async def output(self) -> tuple[bytes, bytes]:
        """Standard output and error, once the command has ended."""
        first, second = self._capture.streams
        await asyncio.wait([first.ended, second.ended], timeout=_drain_seconds)
        return first.data, second.data

    def close(self) -> None:
        """Close all that is open. Idempotent."""
        self.hand_over()
        for reader in self._readers:
            reader.close()
        # A transport that has lost its connection cannot be aborted.
        if self._writer is not None and not self._written.is_lost:
            self._writer.abort()
        self._writer = None
