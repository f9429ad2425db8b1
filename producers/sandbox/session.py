"""Several commands in one sandbox, one after another, over the same files."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Self

from producers.sandbox.arguments import command_variables, writable_directories
from producers.sandbox.cell import Cell, request_packet
from producers.sandbox.config import Limit, SandboxConfig, SandboxResult, work_directory
from producers.sandbox.pipes import CommandPipes
from producers.sandbox.process_tree import shared_once_bytes, usage_of
from rollog.kernel.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_watch_seconds = 0.05
_second_look_seconds = 0.01
_grace_seconds = 1.0
"""A command that the server has not ended after this is ended with the whole sandbox."""

_inside_work = f"""import os, sys
path = sys.argv[1]
if not os.path.realpath(path).startswith({work_directory + "/"!r}):
    sys.exit("it leads out of the work directory")
"""
_write = (
    _inside_work
    + """os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
with open(path, "wb") as file:
    while chunk := sys.stdin.buffer.read(1 << 18):
        file.write(chunk)
"""
)
_read = (
    _inside_work
    + """with open(path, "rb") as file:
    while chunk := file.read(1 << 18):
        sys.stdout.buffer.write(chunk)
"""
)


class SandboxSession:
    """A sandbox that stays: files survive from one command to the next, processes do not.

    | state   | reached by                                       | `run`                                       |
    | ---     | ---                                              | ---                                         |
    | open    | entering it                                      | runs a command                              |
    | running | `run`                                            | raises ValueError: one at a time            |
    | ended   | a command that could not be ended without it,    | raises SandboxError                         |
    |         | or ended it; a cancelled `run`; leaving it       |                                             |

    Example: a command that takes 600 MB of 512 is killed within a tenth of a second and its result bears Limit.MEMORY;
    the files stay and the next command runs. One that stops the server with SIGSTOP cannot be ended alone: at its
    time-out the sandbox ends with it, and `is_open` is false.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._cell = Cell(config)
        self._running = False
        self.is_open = False

    async def __aenter__(self) -> Self:
        """Start it. Raises SandboxRefused."""
        await self._cell.start()
        self.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it with all that runs in it."""
        self.is_open = False
        await self._cell.close()

    @property
    def interpreter(self) -> str:
        """Path of the Python inside."""
        return str(self._cell.interpreter)

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        wall_seconds: float | None = None,
        output_bytes: int | None = None,
    ) -> SandboxResult:
        """Run a list of words. When this returns, nothing that it started runs.

        `environment` comes on top of the configuration's; the other two replace the configuration's limits. Raises
        ValueError for what cannot be a command, SandboxError when the sandbox has ended before.
        """
        _check_command(command)
        if self._running:
            raise ValueError("a session runs one command at a time; open another for what runs beside it")
        if not self.is_open:
            raise SandboxError("this session has ended; open another")
        packet = request_packet(command, command_variables(self._config) | dict(environment or {}))
        limits = self._config.limits
        execution = _Execution(self._cell, self._config, output_bytes or limits.output_bytes)
        self._running = True
        try:
            result = await execution.run(packet, stdin, wall_seconds or limits.wall_seconds)
        except BaseException:
            self.is_open = False
            execution.close()
            await self._cell.close()
            raise
        finally:
            self._running = False
            execution.close()
        if not execution.has_answered:
            self.is_open = False
            await self._cell.close()
        return result

    async def write(self, path: str, content: bytes) -> None:
        """Write a file below the work directory, with the directories above it. Raises ValueError, SandboxError."""
        result = await self.run([self.interpreter, "-I", "-S", "-c", _write, _checked(path)], stdin=content)
        _check_done(result, f"{path} was not written")

    async def read(self, path: str, *, most_bytes: int = 16 << 20) -> bytes:
        """A file below the work directory. Raises ValueError, and SandboxError, also when it is longer."""
        command = [self.interpreter, "-I", "-S", "-c", _read, _checked(path)]
        result = await self.run(command, output_bytes=most_bytes)
        _check_done(result, f"{path} was not read")
        return result.stdout


class _Execution:
    """One command from its start until nothing of it runs."""

    def __init__(self, cell: Cell, config: SandboxConfig, output_bytes: int) -> None:
        self._cell = cell
        self._limits = config.limits
        self._limit: asyncio.Future[Limit] = asyncio.get_running_loop().create_future()
        self._pipes = CommandPipes(output_bytes, lambda: self._end(Limit.OUTPUT))
        self._tasks: list[asyncio.Task[Any]] = []
        self.has_answered = False

    async def run(self, packet: bytes, stdin: bytes, wall_seconds: float) -> SandboxResult:
        loop = asyncio.get_running_loop()
        await self._pipes.open(stdin)
        cpu_seconds_before = usage_of(self._cell.pid).cpu_seconds
        begun = loop.time()
        self._cell.request(packet, self._pipes.theirs)
        self._pipes.hand_over()
        timer = loop.call_later(wall_seconds, self._end, Limit.WALL)
        answer = self._task(self._cell.answer(), "answer of the sandbox")
        watch = self._task(self._watch(cpu_seconds_before), "watch over the sandbox")
        await asyncio.wait({answer, self._limit}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self._cell.end_command()
            await asyncio.wait({answer}, timeout=_grace_seconds)
        timer.cancel()
        watch.cancel()
        status = _status(answer.result()) if answer.done() else None
        self.has_answered = status is not None
        if status is None:
            self._end(Limit.SANDBOX)
            self._cell.kill()
        stdout, stderr = await self._pipes.output()
        return SandboxResult(
            exit_status=status,
            stdout=stdout,
            stderr=stderr,
            seconds=loop.time() - begun,
            limit=self._limit.result() if self._limit.done() else None,
        )

    def close(self) -> None:
        """Leave no task and no pipe behind. Idempotent."""
        for task in self._tasks:
            task.cancel()
        self._pipes.close()

    def _end(self, limit: Limit) -> None:
        if not self._limit.done():
            self._limit.set_result(limit)

    async def _watch(self, cpu_seconds_before: float) -> None:
        """Look several times a second at what all processes of the sandbox take together."""
        was_over_memory = False
        while not self._limit.done():
            usage = usage_of(self._cell.pid)
            is_over_memory = self._is_over_memory(usage.memory_bytes)
            if usage.cpu_seconds - cpu_seconds_before > self._limits.cpu_seconds:
                self._end(Limit.CPU)
            elif is_over_memory and was_over_memory:
                self._end(Limit.MEMORY)
            elif _num_files(self._cell.pid) > self._limits.num_files:
                self._end(Limit.FILES)
            # Processes are read one after another: pages that pass between them meanwhile are seen in both.
            was_over_memory = is_over_memory
            await asyncio.sleep(_second_look_seconds if is_over_memory else _watch_seconds)

    def _is_over_memory(self, resident_bytes: int) -> bool:
        most = self._limits.memory_bytes
        return resident_bytes > most and shared_once_bytes(self._cell.pid) > most

    def _task(self, work: Any, name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.append(task)
        return task


def _status(answer: dict[str, Any] | None) -> int | None:
    status = (answer or {}).get("exit_status")
    return status if isinstance(status, int) else None


def _num_files(pid: int) -> int:
    """Files in the directories that can be written to; sizes do not bound them, and each takes memory of the kernel."""
    total = 0
    for directory in writable_directories:
        with suppress(OSError):
            room = os.statvfs(f"/proc/{pid}/root{directory}")
            total += room.f_files - room.f_ffree
    return total


def _check_command(command: Sequence[str]) -> None:
    if isinstance(command, str) or not command:
        raise ValueError(f"a command is a list of words, not {command!r}")
    for word in command:
        if not isinstance(word, str) or "\0" in word:
            raise ValueError(f"a word of a command is text without NUL, not {word!r}")


def _checked(path: str) -> str:
    """The path inside. Raises ValueError for one that leads out of the work directory."""
    parts = PurePosixPath(path)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise ValueError(f"{path!r} is no path below the work directory; give a relative one without ..")
    return f"{work_directory}/{parts}"


def _check_done(result: SandboxResult, what: str) -> None:
    if not result.succeeded:
        reason = result.limit or result.stderr.decode(errors="replace").strip()[-200:]
        raise SandboxError(f"{what} in the sandbox: {reason}")
