"""What a process and all its descendants take, read from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from producers.processes.ending import process_tree

_ticks_per_second = os.sysconf("SC_CLK_TCK")
_memory_lines = (b"VmRSS:", b"VmSwap:", b"VmPTE:")
_first_time_column = 11
"""Of /proc/PID/stat, counted from behind the name: utime, stime, and both of the children that were reaped."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of one tree take together."""

    memory_bytes: int
    """Pages that several of them share count once for each."""
    cpu_seconds: float
    num_processes: int


def usage_of(pid: int) -> Usage:
    """What `pid` and its descendants take. Processes that end meanwhile are left out."""
    memory_bytes, ticks, count = 0, 0, 0
    for each in process_tree(pid):
        with suppress(OSError):
            memory_bytes += _memory_bytes(each)
            ticks += _ticks(each)
            count += 1
    return Usage(memory_bytes, ticks / _ticks_per_second, count)


def shared_once_bytes(pid: int) -> int:
    """Memory of `pid` and its descendants in which a page that n of them share counts as 1/n for each.

    Reading it takes the kernel a walk over all their pages. Where it may not be read, shared pages count in full.
    """
    total = 0
    for each in process_tree(pid):
        with suppress(OSError):
            total += _proportional_bytes(each)
    return total


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()
    except PermissionError:
        return _memory_bytes(pid)
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"Pss:", b"SwapPss:"))) << 10


def _memory_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(_memory_lines)) << 10


def _ticks(pid: int) -> int:
    _, _, columns = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
    return sum(map(int, columns.split()[_first_time_column : _first_time_column + 4]))
