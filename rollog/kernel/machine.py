"""What this machine has: processors and memory, as far as its system tells."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_meminfo = Path("/proc/meminfo")
_limit = Path("/sys/fs/cgroup/memory.max")
_used = Path("/sys/fs/cgroup/memory.current")


def num_processors() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory_bytes() -> int | None:
    """Memory that can be had without swapping, within the limit of a container (cgroup v2); None where unknown."""
    free = _meminfo_bytes("MemAvailable")
    try:
        limit = int(_limit.read_text()) - int(_used.read_text())
    except (OSError, ValueError):  # none is set, or the system is another
        return free
    return limit if free is None else max(0, min(free, limit))


def memory_bytes() -> int | None:
    """Memory of this machine; None where unknown."""
    return _meminfo_bytes("MemTotal")


def _meminfo_bytes(name: str) -> int | None:
    try:
        lines = _meminfo.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return None


def return_freed_memory() -> None:
    """Give what this process has freed back to the operating system, where its C library (glibc) keeps it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
