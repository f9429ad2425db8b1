"""Starting a host: a process of its own that runs a module of ours and talks with this one over a socket.

It leads a session and a process group of its own, dies with this process, and has no input; its output goes nowhere, so
that code which floods it fills no log and disturbs no line.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from producers.processes import start_elsewhere
from producers.processes.ending import kill_group
from rollog.kernel.errors import DataError
from rollog.kernel.processes import launcher_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

Value = TypeVar("Value")

_num_tries = 3
start_timeout_seconds = 120.0
"""A host that has not said by then that it is ready has failed."""
suspended_seconds = 2.0
"""Who looks at a time-out so long after it was due was suspended, the host perhaps with it: its time begins again."""
drain_seconds = 1.0
"""What a process wrote before it ended is read within this time; then its socket is closed, whoever else has it."""


class HostEnded(DataError):
    """A host ended before it was ready."""


async def started(start: Callable[[], Awaitable[Value]], ended: type[Exception] = HostEnded) -> Value:
    """Start a host; one that ends before it is ready may be another's doing, and is started again, 3 times in all.

    `ended` is the error that says so. Raises it, and what `start` does besides.
    """
    for _ in range(_num_tries - 1):
        with suppress(ended):
            return await start()
    return await start()


async def start_host(
    module: str,
    arguments: Sequence[str],
    *,
    variables: Mapping[str, str],
    python: str | None = None,
    kind: socket.SocketKind = socket.SOCK_STREAM,
    shared: Sequence[int] = (),
    is_ours: bool = False,
) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Run `module FD ARGUMENTS`, FD being its end of a socket: the process, and this end, which does not block.

    `python` is another interpreter than this one; it finds nothing of ours but `producers`. The process has the
    descriptors `shared`, too; where it runs nobody else's code, `is_ours`, it says what fails on this standard error.
    Raises OSError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    ours.setblocking(False)
    descriptor = theirs.fileno()
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *launcher_command([*_interpreter_command(python, module), str(descriptor), *arguments]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=None if is_ours else asyncio.subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[descriptor, *shared],
                env=dict(variables),
            )
    except BaseException:  # cancelled, too
        ours.close()
        raise
    return process, ours


async def connected(ours: socket.socket, protocol: asyncio.Protocol) -> asyncio.Transport:
    """The socket as a transport that `protocol` hears of; closed where that fails."""
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: protocol, sock=ours)
    except BaseException:  # cancelled, too
        ours.close()
        raise
    return transport


async def drained_end(process: asyncio.subprocess.Process) -> int:
    """Wait until the process has ended and what it wrote can have been read; its exit status.

    What it left in its group is killed. Whoever waits for the end of the stream instead waits in vain where a child
    has a copy of the socket.
    """
    status = await process.wait()
    kill_group(process.pid)
    await asyncio.sleep(drain_seconds)
    return status


def _interpreter_command(python: str | None, module: str) -> list[str]:
    if python is None:
        return [sys.executable, "-m", module]
    return ["env", "-u", "PYTHONPATH", python, str(Path(start_elsewhere.__file__)), module]
