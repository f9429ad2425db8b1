"""Whether the walls hold on this machine: attempts to get out, made before any untrusted code runs."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from producers.processes.ending import end_of
from producers.sandbox.arguments import command_variables
from producers.sandbox.escapes import Escape, quick_escapes, remedies
from producers.sandbox.session import SandboxSession
from rollog.kernel.errors import SandboxRefused
from rollog.kernel.processes import launcher_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

    from producers.sandbox.config import SandboxConfig, SandboxResult

_hold_seconds = 20.0


class RunsScripts(Protocol):
    """Runs a script with Python and these walls."""

    async def __call__(self, config: SandboxConfig, source: str, stdin: bytes) -> SandboxResult:
        """How it ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What the scripts try to reach: a file, a directory, a listener, a process."""

    secret: str
    marker: str
    daemon: str
    directory: Path
    port: int
    listeners: tuple[socket.socket, ...]

    def facts(self, config: SandboxConfig, hold_seconds: float) -> bytes:
        """What the scripts get to know."""
        variables = sorted(set(os.environ) - set(command_variables(config)) - {"PWD", "LC_CTYPE"})
        return json.dumps(
            {
                "secret": self.secret,
                "secret_file": str(self.directory / "secret"),
                "directory": str(self.directory),
                "marker": self.marker,
                "daemon": self.daemon,
                "port": self.port,
                "variables": variables,
                "hold_seconds": hold_seconds,
            }
        ).encode()

    def walls_broken(self) -> set[str]:
        """What was done out here."""
        broken = set()
        if (self.directory / "written").exists():
            broken.add("files")
        if not _is_running(self.marker):
            broken.add("processes")
        if any(_was_connected_to(listener) for listener in self.listeners):
            broken.add("network")
        return broken

    def has_leftovers(self) -> bool:
        """Whether the process runs that a script should not have been able to leave behind."""
        return _is_running(self.daemon)


async def check_walls(config: SandboxConfig) -> None:
    """Raise SandboxRefused, with what to do, unless every wall holds."""
    broken = await walls_broken(config)
    if broken:
        reasons = "; ".join(f"{wall}: {remedies[wall]}" for wall in sorted(broken))
        raise SandboxRefused(
            f"the sandbox does not contain what runs in it on this machine: {reasons}. SandboxConfig(unsafe=True) "
            "runs untrusted code without these walls"
        )


async def walls_broken(
    config: SandboxConfig,
    *,
    escapes: Sequence[Escape] = quick_escapes,
    run: RunsScripts | None = None,
    hold_seconds: float = _hold_seconds,
) -> set[str]:
    """Names of the walls that do not hold. Raises SandboxRefused when no sandbox starts.

    `run` is how a script is run, with the sandbox left out; `hold_seconds` is how long a script that has to be ended
    goes on when nobody ends it.
    """
    runner = run or run_script
    async with _planted() as outside:
        facts = outside.facts(config, hold_seconds)

        async def attempt(escape: Escape) -> set[str]:
            outcome = await runner(replace(config, limits=escape.limits), escape.source, facts)
            # At once: by the end of all attempts it may have ended by itself.
            left = "leftovers" in escape.walls and outside.has_leftovers()
            return escape.walls_broken(outcome) | ({"leftovers"} if left else set())

        broken = await _all_or_none([attempt(escape) for escape in escapes])
        return outside.walls_broken().union(*broken)


async def run_script(config: SandboxConfig, source: str, stdin: bytes) -> SandboxResult:
    """Run a script in a sandbox of its own, without testing the walls first."""
    async with SandboxSession(config) as session:
        return await session.run([session.interpreter, "-I", "-S", "-c", source], stdin=stdin)


async def _all_or_none(runs: Sequence[Coroutine[Any, Any, set[str]]]) -> list[set[str]]:
    """The results of all; where one fails, the others are cancelled first."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_victim = "import time; print(flush=True); time.sleep(600)"


@asynccontextmanager
async def _planted() -> AsyncIterator[Outside]:
    marker = f"probe-{secrets.token_hex(8)}"
    victim = await asyncio.create_subprocess_exec(
        *launcher_command([sys.executable, "-I", "-S", "-c", _victim, marker]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        # Until it runs, its command line may be another's, or none: nobody could find it, walls or not.
        assert victim.stdout is not None
        await victim.stdout.readline()
        with (
            tempfile.TemporaryDirectory(prefix="rollog-sandbox-") as name,
            socket.create_server(("127.0.0.1", 0)) as by_port,
            socket.socket(socket.AF_UNIX) as by_name,
        ):
            directory = Path(name)
            by_name.bind(f"\0{marker}")
            by_name.listen()
            secret = secrets.token_hex(8)
            _plant(directory, secret)
            yield Outside(
                secret=secret,
                marker=marker,
                daemon=f"daemon-{secrets.token_hex(8)}",
                directory=directory,
                port=by_port.getsockname()[1],
                listeners=(by_port, by_name),
            )
    finally:
        if victim.returncode is None:
            victim.kill()
        await end_of(victim)


def _plant(directory: Path, secret: str) -> None:
    """Put a secret where everybody may read and write: only the sandbox is in the way."""
    directory.chmod(0o777)
    (directory / "secret").write_text(secret, "ascii")


def _was_connected_to(listener: socket.socket) -> bool:
    listener.setblocking(False)
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        return False
    connection.close()
    return True


def _is_running(marker: str) -> bool:
    for directory in Path("/proc").iterdir():
        try:
            if directory.name.isdigit() and marker.encode() in (directory / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False
