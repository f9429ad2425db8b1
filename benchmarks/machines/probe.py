"""What a link between two hosts does: loss, round trip and rate, measured by packets of its own.

    python -m benchmarks.machines.probe serve ADDRESS PORT     answers datagrams and counts one stream, then ends
    python -m benchmarks.machines.probe ask ADDRESS PORT       prints a line of JSON

Loss is told of one way: of the round trips a share of 1 - (1 - loss)^2 fails.
"""

from __future__ import annotations

import json
import select
import socket
import statistics
import struct
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_num_datagrams = 2000
_every_seconds = 0.001
_last_answer_seconds = 1.0
_stream_seconds = 4.0
_connect_seconds = 60.0
_block_bytes = 1 << 16
_number = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A link, in each direction but for the round trip."""

    loss: float
    round_trip_seconds: float
    """Median."""
    megabits_per_second: float
    """Of one TCP stream."""


def ask(
    place: tuple[str, int], *, num_datagrams: int = _num_datagrams, stream_seconds: float = _stream_seconds
) -> Measured:
    """Measure the link to who serves at a place. Raises OSError where nobody does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect(place)
        with _connected(place) as stream:
            trips = _round_trips(datagrams, num_datagrams)
            rate = _rate(stream, stream_seconds)
    if not trips:
        raise OSError(f"none of {num_datagrams} datagrams came back from {place[0]}:{place[1]}")
    return Measured(
        loss=1 - (len(trips) / num_datagrams) ** 0.5,
        round_trip_seconds=statistics.median(trips),
        megabits_per_second=rate / 1e6,
    )


def serve(place: tuple[str, int]) -> None:
    """Send datagrams back until a stream has ended, whose bytes are counted and told."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.create_server(place) as listener,
    ):
        datagrams.bind(place)
        with listener.accept()[0] as stream:
            num_bytes = 0
            while True:
                ready, _, _ = select.select([datagrams, stream], [], [])
                if datagrams in ready:
                    said, sender = datagrams.recvfrom(_number.size)
                    datagrams.sendto(said, sender)
                if stream in ready:
                    received = len(stream.recv(_block_bytes))
                    if received == 0:
                        break
                    num_bytes += received
            stream.sendall(_number.pack(num_bytes))


def _connected(place: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + _connect_seconds
    while True:
        try:
            return socket.create_connection(place, timeout=_connect_seconds)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_every_seconds)


def _round_trips(datagrams: socket.socket, num_datagrams: int) -> list[float]:
    """Seconds of each datagram that came back."""
    sent: list[float] = []
    trips: list[float] = []
    begin = time.monotonic()
    while len(trips) < num_datagrams:
        now = time.monotonic()
        if len(sent) < num_datagrams:
            due = begin + len(sent) * _every_seconds
            if now >= due:
                # An answer that says that nobody listens yet is as good as a loss.
                with suppress(ConnectionRefusedError):
                    datagrams.send(_number.pack(len(sent)))
                sent.append(now)
        else:
            due = sent[-1] + _last_answer_seconds
            if now >= due:
                break
        ready, _, _ = select.select([datagrams], [], [], max(0.0, due - now))
        if ready:
            number = _number.unpack(datagrams.recv(_number.size))[0]
            trips.append(time.monotonic() - sent[number])
    return trips


def _rate(stream: socket.socket, seconds: float) -> float:
    """Bits that arrive each second."""
    block = bytes(_block_bytes)
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        stream.sendall(block)
    stream.shutdown(socket.SHUT_WR)
    said = stream.recv(_number.size, socket.MSG_WAITALL)
    return float(8 * _number.unpack(said)[0] / (time.monotonic() - begin))


def main(arguments: Sequence[str]) -> None:
    """Serve, or ask and print."""
    what, address, port = arguments
    place = (address, int(port))
    if what == "serve":
        serve(place)
    else:
        sys.stdout.write(json.dumps(asdict(ask(place))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
