"""Killing a process with what it started, awaiting its end, saying how one ended. Imports only the standard library."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Iterator


def kill_group(pid: int) -> None:
    """Kill what is left in the process group that the process leads, or led."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Kill a process, its group, and whatever descends from it in other groups."""
    for each in list(process_tree(pid)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)
        kill_group(each)


def process_tree(pid: int) -> Iterator[int]:
    """`pid` and its descendants, parents first. Processes that end meanwhile are left out."""
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        yield parent
        waiting += _children(parent)


async def end_of(process: Process) -> int:
    """Wait until a process has ended and its pipes are closed on this side, too; its exit status.

    asyncio's `wait` gives the status of a process that has ended at once, whatever its pipes do, and a loop that ends
    then leaves them open. What is in them is dropped. Waits as long as anybody holds their other end.
    """
    status = await process.wait()
    for stream in (process.stdout, process.stderr):
        while stream is not None and await stream.read(1 << 16):
            pass
    return status


def way_of_ending(status: int) -> str:
    """What an exit status says, to stand behind "it ended"."""
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def _children(pid: int) -> Iterator[int]:
    threads: list[str] = []
    with suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - several times a second
    for thread in threads:
        with suppress(OSError):
            yield from map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
