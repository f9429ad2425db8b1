"""Links, the wire between hosts, and what a phase of a failing network cost."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from benchmarks.machines.link import Conditions, Direction
from benchmarks.machines.phases import Happened, Phase, cost_of, phases, ratios, undisturbed

if TYPE_CHECKING:
    from collections.abc import Iterator

one, two = "10.77.0.1", "10.77.0.2"


def test_packets_are_sent_one_after_the_other_and_then_delayed() -> None:
    slow = Conditions(delay_seconds=0.05, bits_per_second=200e6)
    direction = Direction()
    arrivals = [direction.arrival(0.0, 1500, slow, Random(0)) for _ in range(2)]
    assert arrivals == [pytest.approx(0.05006), pytest.approx(0.05012)]


def test_a_queue_that_is_full_drops() -> None:
    slow, direction = Conditions(bits_per_second=12_000), Direction()
    arrivals = [direction.arrival(0.0, 150, slow, Random(0)) for _ in range(6)]
    assert [arrival is not None for arrival in arrivals] == [True, True, True, False, False, False]
    assert direction.arrival(10.0, 150, slow, Random(0)) == pytest.approx(10.1)


def test_a_lossy_link_drops_its_share_and_a_cut_one_everything() -> None:
    random, direction = Random(0), Direction()
    lossy = Conditions(loss=0.05)
    lost = sum(direction.arrival(0.0, 100, lossy, random) is None for _ in range(10_000))
    assert 400 < lost < 600
    assert direction.arrival(0.0, 100, Conditions(is_cut=True), random) is None


def packet(source: str, target: str, payload: bytes) -> bytes:
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, 64, 17, 0)
    return header + socket.inet_aton(source) + socket.inet_aton(target) + payload


@pytest.fixture
def wire() -> Iterator[tuple[subprocess.Popen[str], socket.socket, socket.socket]]:
    """The wire's process, with sockets in place of TUN devices: both keep packets apart."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    theirs = [pair[1].fileno() for pair in pairs]
    command = [
        sys.executable,
        "-m",
        "benchmarks.machines.wire",
        "0",
        f"{one}={theirs[0]}",
        f"{two}={theirs[1]}",
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=theirs, cwd=Path.cwd()
    ) as process:
        for pair in pairs:
            pair[1].close()
            pair[0].settimeout(30)
        yield process, pairs[0][0], pairs[1][0]
        process.kill()
    for pair in pairs:
        pair[0].close()


def told(process: subprocess.Popen[str], address: str, **conditions: object) -> dict[str, int]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"address": address, **conditions}) + "\n")
    process.stdin.flush()
    counts: dict[str, int] = json.loads(process.stdout.readline())
    return counts


def test_the_wire_carries_packets_to_the_host_they_are_sent_to(
    wire: tuple[subprocess.Popen[str], socket.socket, socket.socket],
) -> None:
    process, first, second = wire
    there, back, astray = packet(one, two, b"there"), packet(two, one, b"back"), packet(one, "10.77.0.9", b"")
    first.send(astray)
    first.send(there)
    assert second.recv(1 << 16) == there
    second.send(back)
    assert first.recv(1 << 16) == back
    assert told(process, two, is_cut=True)["carried"] == 2
    first.send(there)
    second.send(back)
    first.send(packet(one, one, b"own"))
    assert first.recv(1 << 16)[20:] == b"own"
    assert told(process, two, delay_seconds=0.1)["dropped"] == 2
    first.send(there)
    assert second.recv(1 << 16) == there


def test_a_phase_counts_its_steps_and_its_longest_gap() -> None:
    happened = Happened(phase=Phase(name="store_cut", seconds=15), began=100.0, ended=130.0)
    cost = cost_of(happened, [90.0, 101.0, 102.0, 125.0, 131.0])
    assert (cost.num_steps, cost.step_seconds, cost.longest_gap_seconds) == (3, 10.0, 23.0)
    calm = [
        cost_of(Happened(phase=Phase(name=undisturbed, seconds=4), began=at, ended=at + 4), [at + 1, at + 3])
        for at in (0.0, 200.0)
    ]
    assert ratios([calm[0], cost, calm[1]]) == {"store_cut": 5.0}


def test_a_phase_without_a_step_costs_all_its_time() -> None:
    happened = Happened(phase=Phase(name="head_cut", seconds=20), began=0.0, ended=35.0)
    assert cost_of(happened, []).step_seconds == 35.0


def test_every_phase_has_a_name_of_its_own_between_two_that_are_undisturbed() -> None:
    names = [phase.name for phase in phases("head", "store", ("one", "two"))]
    assert names[0] == names[-1] == undisturbed
    assert len(set(names)) == len(names) - 1
    assert undisturbed not in names[1:-1]
