"""Running what an agent wrote: a sandbox for each command and for each judgement, with the work directory in it.

Between two commands there is no sandbox, only the files. So nothing but files is left of a command, whatever it did,
and an episode that waits for its agent holds no process.
"""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import producers
from producers.environments.repair.files import (
    as_text,
    fits,
    from_text,
    most_bytes,
    most_files,
    most_path_characters,
)
from producers.rewards.code_cases import CallBatch
from producers.sandbox.arguments import find_interpreter
from producers.sandbox.blocking import run_to_end
from producers.sandbox.config import Limit, SandboxConfig, SandboxLimits
from producers.sandbox.sandbox import Sandbox
from producers.sandbox.session import SandboxSession
from rollog.kernel.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from producers.environments.repair.files import Files
    from producers.rewards.code_cases import Call, Returned
    from producers.sandbox.config import SandboxResult

_of_time = (Limit.WALL, Limit.CPU, Limit.SANDBOX)
_output_bytes = 1 << 18
_judging_seconds, _judging_cpu_seconds = 20.0, 10.0
_copying_seconds = 20.0
_most_copied_bytes = 6 * (most_bytes + 100 * most_files)
"""Every byte may be escaped as six."""

_unpack = """
import json, os, sys
for path, content in json.load(sys.stdin).items():
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(content.encode(errors="surrogateescape"))
"""
_pack = f"""
import json, os, stat, sys
files, size = {{}}, 0
for directory, _, names in os.walk("."):
    for name in names:
        path = os.path.join(directory, name)
        about = os.lstat(path)
        is_kept = stat.S_ISREG(about.st_mode) and path.isprintable() and len(path) <= {most_path_characters}
        if not is_kept:
            continue
        size += about.st_size
        if size > {most_bytes} or len(files) > {most_files}:
            sys.exit(3)
        try:
            with open(path, "rb") as file:
                files[path[2:]] = file.read().decode(errors="surrogateescape")
        except PermissionError:
            pass
print(json.dumps(files))
"""

_testing = threading.Lock()
_tested: set[Path] = set()
"""Interpreters whose sandboxes have been tested in this process."""


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """How a command ended; `files` are None where the sandbox ended with it, or they are more than fits."""

    result: SandboxResult
    files: Files | None


class Workbench:
    """Runs commands of at most `command_seconds` and calls. Its methods block; several may run at once."""

    def __init__(self, command_seconds: float) -> None:
        interpreter = find_interpreter(SandboxConfig())
        self._config = SandboxConfig(
            limits=SandboxLimits(
                wall_seconds=command_seconds,
                cpu_seconds=command_seconds,
                memory_bytes=256 << 20,
                num_processes=32,
                num_open_files=128,
                file_bytes=8 << 20,
                output_bytes=_output_bytes,
                directory_bytes=16 << 20,
                num_files=2_000,
            ),
            environment={
                "PATH": f"{interpreter.parent}:/usr/local/bin:/usr/bin:/bin",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONHASHSEED": "0",
            },
            # Where rollog is installed beside the interpreter, the originals would be seen.
            hidden=(Path(producers.__file__).parent,),
        )
        # Where a defect is tried, and where work is judged, time does not depend on what a command may take.
        self._judging = replace(
            self._config,
            limits=replace(
                self._config.limits, wall_seconds=_judging_seconds, cpu_seconds=_judging_cpu_seconds
            ),
        )
        self._interpreter = interpreter

    def start(self) -> None:
        """Test the sandbox, about a second, once in a process. Raises SandboxRefused where it does not hold."""
        with _testing:
            if self._interpreter not in _tested:
                run_to_end(Sandbox(self._config).start())
                _tested.add(self._interpreter)

    def run(self, files: Files, command: str) -> CommandOutcome:
        """Give a command to a shell in a work directory with these files; its error is part of its output."""
        return run_to_end(self._run(files, command))

    def returned(
        self, files: Files, calls: Sequence[Call], *, most_lines: int | None = None
    ) -> list[Returned] | None:
        """What calls of modules in the files give; None where they do not give anything, one by one, in time.

        Raises SandboxError, with `most_lines`, for calls that a limit of time ends before that many lines.
        """
        return run_to_end(self._returned(files, CallBatch(calls, most_lines)))

    async def _run(self, files: Files, command: str) -> CommandOutcome:
        async with self._opened(self._config, files) as session:
            result = await session.run(["/bin/sh", "-c", 'exec /bin/sh -c "$0" 2>&1', command])
            return CommandOutcome(result, await self._files_of(session))

    async def _returned(self, files: Files, batch: CallBatch) -> list[Returned] | None:
        async with self._opened(self._judging, files) as session:
            result = await session.run([session.interpreter, *batch.arguments], stdin=batch.stdin)
        if batch.most_lines is not None and result.limit in _of_time:
            # Which defect a seed gives must not depend on how busy the machine is.
            raise SandboxError(
                f"a module of the toolbox was ended by {result.limit}; is the machine too busy?"
            )
        return batch.returned(result.stdout) if result.succeeded else None

    @asynccontextmanager
    async def _opened(self, config: SandboxConfig, files: Files) -> AsyncIterator[SandboxSession]:
        async with SandboxSession(config) as session:
            content = as_text(files).encode()
            result = await self._python(session, _unpack, content)
            if not result.succeeded:
                reason = result.limit or result.stderr.decode(errors="replace")[-200:]
                raise SandboxError(f"the work directory was not filled in the sandbox: {reason}")
            yield session

    async def _files_of(self, session: SandboxSession) -> Files | None:
        if not session.is_open:
            return None
        result = await self._python(session, _pack, b"")
        if not result.succeeded:
            return None
        try:
            files = from_text(result.stdout)
        except (ValueError, RecursionError):
            return None
        return files if fits(files) else None

    async def _python(self, session: SandboxSession, source: str, stdin: bytes) -> SandboxResult:
        return await session.run(
            [session.interpreter, "-I", "-S", "-c", source],
            stdin=stdin,
            wall_seconds=_copying_seconds,
            output_bytes=_most_copied_bytes,
        )
