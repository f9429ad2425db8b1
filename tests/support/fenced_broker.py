"""A Kafka broker that says for a moment what one says which is fenced: that the cluster has no brokers.

It stands between clients and a real broker, on loopback. Apache Kafka fences a broker that stood still for longer than
its session, unless it is heard first: which of both happens cannot be brought about from outside.
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse

from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from collections.abc import Iterator

_naming = {3: MetadataResponse, 10: FindCoordinatorResponse}
"""Answers that say where brokers are, by the key of their request."""


class FencedBroker(Component):
    """Answers as the broker at `address` does; its own address is `address`."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._upstream = (host, int(port))
        self._is_fenced = threading.Event()
        self._open: set[socket.socket] = set()
        self.num_refusals = 0
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                proxy._serve(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        """Listen no longer, and cut what is connected."""
        self._server.shutdown()
        self._server.server_close()
        self._cut()
        self._thread.join()

    def fence(self) -> None:
        """Cut every connection; whoever asks who is there hears that there is nobody."""
        self._is_fenced.set()
        self._cut()

    def unfence(self) -> None:
        """Answer as before."""
        self._is_fenced.clear()

    def _cut(self) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _serve(self, client: socket.socket) -> None:
        """Requests of one connection are answered in their order, as Kafka does."""
        with socket.create_connection(self._upstream) as broker:
            self._open |= {client, broker}
            asked: dict[int, tuple[Any, int]] = {}
            back = threading.Thread(target=self._answer, args=(broker, client, asked), daemon=True)
            back.start()
            with suppress(OSError):
                for frame in _frames(client):
                    key, version, correlation_id = struct.unpack_from(">hhi", frame)
                    if key in _naming:
                        asked[correlation_id] = (_naming[key], version)
                    broker.sendall(struct.pack(">i", len(frame)) + frame)
            with suppress(OSError):
                broker.shutdown(socket.SHUT_RDWR)
            back.join()
            self._open -= {client, broker}

    def _answer(
        self, broker: socket.socket, client: socket.socket, asked: dict[int, tuple[Any, int]]
    ) -> None:
        with suppress(OSError):
            for frame in _frames(broker):
                question = asked.pop(struct.unpack_from(">i", frame)[0], None)
                said = frame if question is None else self._changed(frame, *question)
                client.sendall(struct.pack(">i", len(said)) + said)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _changed(self, frame: bytes, kind: Any, version: int) -> bytes:
        start = 5 if kind.flexible_version_q(version) else 4  # the correlation id, and no tags
        found = kind.decode(frame[start:], version=version)
        answer = kind(
            version=version, **{name: getattr(found, name) for name in found.fields if hasattr(found, name)}
        )
        places = answer.brokers if kind is MetadataResponse else answer.coordinators or [answer]
        for place in places:
            if place.host:
                place.host, place.port = self.address.split(":")[0], int(self.address.split(":")[1])
        if kind is MetadataResponse and self._is_fenced.is_set():
            self.num_refusals += 1
            answer.brokers = []
            for topic in answer.topics:
                for partition in topic.partitions:
                    partition.leader_id = -1
        return frame[:start] + bytes(answer.encode())


def _frames(connection: socket.socket) -> Iterator[bytes]:
    """What is sent with its length before, until the connection ends."""
    with connection.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            yield stream.read(struct.unpack(">i", head)[0])
