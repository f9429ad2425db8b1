"""One bubblewrap process: starting it, talking to the server in it, ending it with all that runs in it.

    asyncio, this process          bubblewrap (outside)       first process (inside)      server, commands (inside)
    spawns ----------------------> clones ------------------> reaps orphans ------------> serves the socket
    holds a pidfd of the first process: its death is the death of everything inside, and is awaited

Bubblewrap dies with this process, and the first process with it, however this process ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from producers.processes.ending import end_of
from producers.sandbox import inside
from producers.sandbox.arguments import (
    Descriptors,
    bubblewrap_arguments,
    find_bubblewrap,
    find_interpreter,
    user_id,
)
from producers.sandbox.system_calls import filter_program
from rollog.kernel.errors import SandboxError, SandboxRefused

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from producers.sandbox.config import SandboxConfig, SandboxLimits

Value = TypeVar("Value")

_start_seconds = 30.0
_end_seconds = 10.0
_largest_packet_bytes = 1 << 18
_most_request_bytes = 100_000
"""A packet to the server has to fit into a socket's buffer."""
_processes_of_its_own = 2
"""The first process and the server, which the kernel counts, too."""


class Cell:
    """The processes of one sandbox.

    | state   | reached by                          | what runs                                    |
    | ---     | ---                                 | ---                                          |
    | new     | the constructor                     | nothing                                      |
    | open    | `start`                             | the server, and one command at most          |
    | ending  | `kill`, or the first process's end  | what the kernel has not ended yet            |
    | closed  | `close`                             | nothing                                      |
    """

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._pidfd: int | None = None
        self.pid = 0
        """Of the first process, as seen from outside."""
        self.interpreter = Path()

    async def start(self) -> None:
        """Start bubblewrap and wait for the server. Raises SandboxRefused when it does not start on this machine."""
        try:
            await uninterrupted(self._start())
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        self.interpreter = find_interpreter(self._config)
        info = await self._spawn(find_bubblewrap(self._config))
        try:
            async with asyncio.timeout(_start_seconds):
                with info:
                    self.pid = await _first_process(info)
                self._pidfd = os.pidfd_open(self.pid)
                started = await self.answer()
        except (TimeoutError, OSError, ValueError, KeyError) as error:
            raise SandboxRefused(await self._why_not_started(error)) from error
        if started is None:
            raise SandboxRefused(await self._why_not_started(None))

    async def _spawn(self, bubblewrap: Path) -> socket.socket:
        """Start bubblewrap; the socket to which it writes its first process's id."""
        identity = user_id()
        with ExitStack() as stack:
            server = stack.enter_context(_server_text())
            program = stack.enter_context(_file_in_memory(filter_program()))
            info, their_info = socket.socketpair()
            self._control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for theirs in (their_info, their_control):
                stack.enter_context(theirs)
            for ours in (info, self._control):
                ours.setblocking(False)
            descriptors = Descriptors(
                server=server.fileno(),
                filter=program.fileno(),
                info=their_info.fileno(),
                control=their_control.fileno(),
            )
            arguments = bubblewrap_arguments(bubblewrap, self.interpreter, self._config, descriptors)
            arguments.append(json.dumps(_kernel_limits(self._config.limits)))
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *arguments,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    env={},
                    cwd="/",
                    pass_fds=[server.fileno(), program.fileno(), their_info.fileno(), their_control.fileno()],
                    user=identity,
                    group=identity,
                    extra_groups=None if identity is None else [],
                )
            except OSError as error:
                info.close()
                raise SandboxRefused(
                    f"{bubblewrap} cannot be started as user id {identity}: {error}"
                ) from error
            return info

    def request(self, packet: bytes, files: Sequence[int]) -> None:
        """Have the server start the command of a `request_packet` with these three files. Raises SandboxError."""
        assert self._control is not None
        try:
            socket.send_fds(self._control, [packet], files)
        except OSError as error:
            raise SandboxError(f"the sandbox has ended: {error}") from error

    def end_command(self) -> None:
        """Have the server kill all processes but its own."""
        assert self._control is not None
        with suppress(OSError):
            self._control.send(b"end")

    async def answer(self) -> dict[str, Any] | None:
        """The server's next packet; None when there is no server any more, or what came is not from it."""
        assert self._control is not None
        try:
            packet = await asyncio.get_running_loop().sock_recv(self._control, _largest_packet_bytes)
            answer = json.loads(packet)
        except (OSError, ValueError, RecursionError):
            return None
        return answer if isinstance(answer, dict) else None

    def kill(self) -> None:
        """End everything inside, without waiting for it."""
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        elif self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        """Kill everything inside and wait until it is dead. Idempotent."""
        self.kill()
        await uninterrupted(self._close())

    async def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # It ends when its first process has ended, and that when all others have.
            try:
                async with asyncio.timeout(_end_seconds):
                    await end_of(process)
            except TimeoutError:
                if process.returncode is None:
                    process.kill()
                await process.wait()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if self._control is not None:
            self._control.close()

    async def _why_not_started(self, error: Exception | None) -> str:
        self.kill()
        assert self._process is not None
        assert self._process.stderr is not None
        said = (await self._process.stderr.read(2000)).decode(errors="replace").strip()
        return (
            f"the sandbox does not start on this machine: {said or error or 'it ended at once'}; it needs user "
            "namespaces for ordinary users (sysctl user.max_user_namespaces above 0, AppArmor's "
            "kernel.apparmor_restrict_unprivileged_userns = 0, in a container --security-opt seccomp=unconfined)"
        )


def request_packet(command: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """What the server needs to start a command. Raises ValueError for one that is too long."""
    packet = json.dumps({"command": list(command), "environment": dict(environment)}).encode()
    if len(packet) > _most_request_bytes:
        raise ValueError(
            f"a command of {len(packet)} bytes with its environment is over {_most_request_bytes}; give it as file"
        )
    return packet


async def uninterrupted(work: Coroutine[Any, Any, Value]) -> Value:
    """Finish `work` although this is cancelled meanwhile, and be cancelled then."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(asyncio.wait([task]))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


async def _first_process(info: socket.socket) -> int:
    """The process id that bubblewrap writes. Raises ValueError when it ends before."""
    loop = asyncio.get_running_loop()
    text = b""
    while not text.rstrip().endswith(b"}"):
        chunk = await loop.sock_recv(info, 4096)
        if not chunk:
            raise ValueError("it ended before it had a first process")
        text += chunk
    return int(json.loads(text)["child-pid"])


def _server_text() -> BinaryIO:
    return Path(inside.__file__).open("rb")


def _file_in_memory(content: bytes) -> BinaryIO:
    file = os.fdopen(os.memfd_create("filter"), "r+b", 0)
    file.write(content)
    file.seek(0)
    return file


def _kernel_limits(limits: SandboxLimits) -> dict[str, int]:
    """What the kernel holds each process to, by the names of the module `resource`."""
    return {
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": int(limits.cpu_seconds) + 2,
        "RLIMIT_DATA": limits.memory_bytes,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_NOFILE": limits.num_open_files,
        "RLIMIT_NPROC": limits.num_processes + _processes_of_its_own,
    }
