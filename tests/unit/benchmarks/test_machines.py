"""Links, the wire between hosts, and what a phase of a failing network cost."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from benchmarks.machines.link import Conditions, Direction
from benchmarks.machines.phases import (
    Cost,
    Happened,
    Phase,
    costs,
    phases,
    probed,
    undisturbed,
    undisturbed_seconds,
)
from benchmarks.machines.probe import ask, serve
from benchmarks.machines.table import begin, end, page, with_text, written

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


def happened(name: str, began: float, ended: float) -> Happened:
    return Happened(phase=Phase(name=name, seconds=1), began=began, ended=ended)


def test_a_phase_is_compared_with_those_beside_it() -> None:
    steps = [0.0, 1.0, 2.0, 3.0, 4.0, 24.0, 26.0, 29.0, 32.0, 35.0]
    calm = (happened(undisturbed, 0, 4), happened(undisturbed, 26, 35))
    all_phases = [calm[0], happened("store_cut", 4, 26), calm[1]]
    (cost,) = costs(all_phases, steps)
    assert (cost.name, cost.steps, cost.base) == ("store_cut", (20.0, 2.0), (1.0,) * 4 + (3.0,) * 3)
    assert cost.ratio == pytest.approx(11 / (13 / 7))
    assert cost.lost_seconds == pytest.approx(22 - 2 * 13 / 7)
    assert cost.interval is None
    assert undisturbed_seconds(all_phases, steps) == [*cost.base]


def test_the_interval_of_a_ratio_holds_the_spread_of_both_sides() -> None:
    steady = Cost(name="delay", steps=(2.0,) * 8, base=(1.0,) * 8)
    assert steady.interval == (2.0, 2.0)
    spread = Cost(name="delay", steps=(2.0,) * 8, base=(0.5, 1.5) * 4)
    low, high = spread.interval or (0, 0)
    assert 1.3 < low < 1.7
    assert 2.4 < high < 4.1


def test_every_fault_has_a_name_of_its_own() -> None:
    names = [phase.name for phase in phases("head", "store", ("one", "two"))]
    assert len(set(names)) == len(names)
    assert undisturbed not in names
    assert set(probed) - {undisturbed} <= set(names)


def test_the_probe_measures_a_link() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = ("127.0.0.1", listener.getsockname()[1])
    server = threading.Thread(target=serve, args=(place,))
    server.start()
    try:
        measured = ask(place, num_datagrams=100, stream_seconds=0.1)
    finally:
        server.join(60)
    assert not server.is_alive()
    assert measured.loss < 0.5
    assert 0 < measured.round_trip_seconds < 1
    assert measured.megabits_per_second > 0


def test_results_are_written_between_the_marks_of_their_page() -> None:
    found = {
        "date": "2026-11-25",
        "machine": "x86_64",
        "load_average": [1.5],
        "restarts": {"head-train": 0},
        "figures": [{"name": "machines.step_seconds.undisturbed", "value": 1.4, "interval": [1.3, 1.5]}],
        "links": {"delay_50ms": {"loss": 0.0, "round_trip_seconds": 0.1005, "megabits_per_second": 80.0}},
        "phases": [
            {
                "name": "head_cut",
                "num_steps": 2,
                "step_seconds": 20.0,
                "undisturbed_seconds": 1.4,
                "ratio": 14.286,
                "interval": None,
                "lost_seconds": 37.2,
                "longest_step_seconds": 38.6,
            }
        ],
        "recount": {
            "num_steps": 9,
            "num_samples": 30,
            "num_trained_twice": 0,
            "dispositions": {"trained": 30},
        },
    }
    changed = with_text(f"before\n{begin}\nold\n{end}\nafter", written(found))
    assert "| `head_cut` | 2 | 20.0 | 1.4 | 14.29 | - | 37 | 38.6 |" in changed
    assert "| `delay_50ms` | 0.0 % | 100.5 ms | 80 Mbit/s |" in changed
    assert "Undisturbed, a step took 1.40 [1.30, 1.50] s." in changed
    assert "old" not in changed
    assert page.read_text(encoding="utf-8").count(begin) == 1
    with pytest.raises(ValueError, match="put both lines"):
        with_text("nothing", "")
