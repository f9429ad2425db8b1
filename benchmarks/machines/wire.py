"""The network between the hosts: a process that carries IP packets from one TUN device to another.

    python -m benchmarks.machines.wire SEED ADDRESS=DESCRIPTOR...

Each host has a TUN device, whose other end this process holds. A packet passes the link of its sender and that of its
receiver. Lines of JSON on standard input change links, `{"address": "10.77.0.2", "loss": 0.05}`; each is answered by a
line with the number of packets carried and dropped so far. The process ends with its standard input.

Linux's own netem does the same inside the kernel; many kernels are built without it.
"""

from __future__ import annotations

import heapq
import ipaddress
import json
import os
import selectors
import sys
import time
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from benchmarks.machines.link import Conditions, Direction

if TYPE_CHECKING:
    from collections.abc import Sequence

_longest_packet_bytes = 1 << 16
_packets_at_once = 64
_idle_seconds = 0.5
_destination = slice(16, 20)
_version_4 = 4


@dataclass(slots=True)
class Port:
    """One host's link: its TUN device, its state, and both directions."""

    descriptor: int
    conditions: Conditions = field(default_factory=Conditions)
    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)


class Wire:
    """Carries packets between ports, by the IPv4 address they are sent to."""

    def __init__(self, ports: dict[bytes, Port], random: Random) -> None:
        self._ports = ports
        self._random = random
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self.num_carried = 0
        self.num_dropped = 0

    def run(self, control: int) -> None:
        """Carry packets until `control`, a descriptor, is at its end."""
        with selectors.DefaultSelector() as selector:
            selector.register(control, selectors.EVENT_READ, None)
            for port in self._ports.values():
                os.set_blocking(port.descriptor, False)
                selector.register(port.descriptor, selectors.EVENT_READ, port)
            while True:
                for key, _ in selector.select(self._seconds_to_wait()):
                    if key.data is not None:
                        self._take(key.data)
                    elif not self._obey(os.read(control, _longest_packet_bytes)):
                        return
                self._deliver(time.monotonic())

    def change(self, address: str, conditions: Conditions) -> None:
        """Give the link of a host another state."""
        self._ports[ipaddress.IPv4Address(address).packed].conditions = conditions

    def _seconds_to_wait(self) -> float:
        if not self._under_way:
            return _idle_seconds
        return max(0.0, self._under_way[0][0] - time.monotonic())

    def _obey(self, said: bytes) -> bool:
        for line in said.splitlines():
            order = json.loads(line)
            self.change(order.pop("address"), Conditions(**order))
            counts = {"carried": self.num_carried, "dropped": self.num_dropped}
            sys.stdout.write(json.dumps(counts) + "\n")
            sys.stdout.flush()
        return bool(said)

    def _take(self, sender: Port) -> None:
        for _ in range(_packets_at_once):
            try:
                packet = os.read(sender.descriptor, _longest_packet_bytes)
            except BlockingIOError:
                return
            receiver = self._ports.get(packet[_destination])
            if packet[0] >> 4 == _version_4 and receiver is not None:
                self._carry(packet, sender, receiver, time.monotonic())

    def _carry(self, packet: bytes, sender: Port, receiver: Port, now: float) -> None:
        num_bytes = len(packet)
        passed = sender.up.arrival(now, num_bytes, sender.conditions, self._random)
        arrival = (
            None
            if passed is None
            else receiver.down.arrival(passed, num_bytes, receiver.conditions, self._random)
        )
        if arrival is None:
            self.num_dropped += 1
        elif arrival <= now:
            self._write(receiver.descriptor, packet)
        else:
            self._number += 1
            heapq.heappush(self._under_way, (arrival, self._number, receiver.descriptor, packet))

    def _deliver(self, now: float) -> None:
        while self._under_way and self._under_way[0][0] <= now:
            _, _, descriptor, packet = heapq.heappop(self._under_way)
            self._write(descriptor, packet)

    def _write(self, descriptor: int, packet: bytes) -> None:
        try:
            os.write(descriptor, packet)
        except (
            OSError
        ):  # the host's device is down, or its queue is full: the packet is lost, as on any network
            self.num_dropped += 1
        else:
            self.num_carried += 1


def main(arguments: Sequence[str]) -> None:
    """Carry packets until standard input ends."""
    seed, *places = arguments
    ports = {}
    for place in places:
        address, _, descriptor = place.partition("=")
        ports[ipaddress.IPv4Address(address).packed] = Port(int(descriptor))
    Wire(ports, Random(int(seed))).run(sys.stdin.fileno())  # losses, no secrets


if __name__ == "__main__":
    main(sys.argv[1:])
