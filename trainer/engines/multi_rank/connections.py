"""Connections between the ranks of one training job: whole messages in order, and word at once when a rank is gone.

Beside the collective operations, which have time limits, because rank 0 may wait for samples as long as it takes. A
thread per connection reads; it notices the end of the other process by the end of its connection, and the loss of its
machine by TCP's keep-alive.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from rollog.kernel.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

_head = struct.Struct("<?Q")
"""Whether a message is a notice, and its length."""
_keep_alive = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds of silence, seconds between probes, unanswered probes: a machine is missed after about 20 s."""


class Connection:
    """One end of a connection to the rank called `peer`; `on_lost` is called by a thread of its own.

    Calls and their answers are for one thread on each side. Beside them another one may send notices, and another one
    wait for these.
    """

    def __init__(self, sock: socket.socket, peer: str, on_lost: Callable[[], None]) -> None:
        self.peer = peer
        self.is_lost = False
        self._socket = sock
        self._on_lost = on_lost
        self._is_ending = False
        self._sending = threading.Lock()
        self._arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._notices: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        _keep_watch(sock)
        self._reader = threading.Thread(target=self._read, name=f"reader of {peer}", daemon=True)
        self._reader.start()

    def send(self, message: bytes, *, is_notice: bool = False) -> None:
        """Send one message. Raises EngineError where the other rank is gone."""
        try:
            with self._sending:
                self._socket.sendall(_head.pack(is_notice, len(message)))
                self._socket.sendall(message)
        except OSError as error:
            raise self._gone() from error

    def receive(self, timeout_seconds: float | None = None) -> bytes:
        """The next message. Raises EngineError where the other rank is gone, or says nothing for so long."""
        try:
            message = self._arrived.get(timeout=timeout_seconds)
        except queue.Empty:
            raise EngineError(f"{self.peer} has not answered for {timeout_seconds:g} s") from None
        if message is None:
            self._arrived.put(None)
            raise self._gone()
        return message

    def notice(self, timeout_seconds: float) -> bytes | None:
        """The next notice, None where none comes in time. Raises EngineError where the other rank is gone."""
        try:
            message = self._notices.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        if message is None:
            self._notices.put(None)
            raise self._gone()
        return message

    def expect_end(self) -> None:
        """From here on the end of the connection is no loss."""
        self._is_ending = True

    def close(self) -> None:
        """End the connection; the other side sees it."""
        self._is_ending = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()

    def _read(self) -> None:
        with suppress(OSError):
            while (head := self._exactly(_head.size)) is not None:
                is_notice, num_bytes = _head.unpack(head)
                message = self._exactly(num_bytes)
                if message is None:
                    break
                (self._notices if is_notice else self._arrived).put(message)
        if not self._is_ending:
            self.is_lost = True
            self._on_lost()
        self._arrived.put(None)
        self._notices.put(None)

    def _exactly(self, num_bytes: int) -> bytes | None:
        """So many bytes, None where the connection ends before."""
        received = bytearray(num_bytes)
        view = memoryview(received)
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                return None
            view = view[count:]
        return bytes(received)

    def _gone(self) -> EngineError:
        return EngineError(f"{self.peer} is gone: its process has ended, or its machine cannot be reached")


def _keep_watch(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _keep_alive.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
