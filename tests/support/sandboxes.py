"""Sandboxes in tests, and what is left of them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producers.sandbox.config import SandboxConfig, SandboxLimits, SandboxResult
from producers.sandbox.session import SandboxSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

most_seconds = 60.0
"""Longer than any scenario takes on a busy machine."""


def limits(**given: float) -> SandboxLimits:
    """Limits with time enough on a busy machine, but for those given."""
    return SandboxLimits(**{"wall_seconds": 40.0, "cpu_seconds": 40.0} | given)  # type: ignore[arg-type]


@asynccontextmanager
async def a_session(config: SandboxConfig | None = None, **given: float) -> AsyncIterator[SandboxSession]:
    """An open session with these limits."""
    async with SandboxSession(config or SandboxConfig(limits=limits(**given))) as session:
        yield session


async def python(session: SandboxSession, source: str, **options: Any) -> SandboxResult:
    """Run a script in it."""
    return await session.run([session.interpreter, "-I", "-S", "-c", source], **options)


def finish(scenario: Coroutine[Any, Any, Any]) -> Any:
    """Run a scenario to its end."""
    return asyncio.run(asyncio.wait_for(scenario, most_seconds))


def run_python(source: str, config: SandboxConfig | None = None, **given: float) -> SandboxResult:
    """Run a script in a sandbox of its own, whose walls are not tested first."""

    async def scenario() -> SandboxResult:
        async with a_session(config, **given) as session:
            return await python(session, source)

    result: SandboxResult = finish(scenario())
    return result


attempts = """
import ctypes, errno, glob, json, mmap, os, resource, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def failed(function):
    try:
        function()
    except (OSError, ValueError, MemoryError):
        return True
    return False
"""
"""What scripts that try to get out begin with."""


def printed(source: str, config: SandboxConfig | None = None, **given: float) -> str:
    """What such a script writes that ends by itself."""
    result = run_python(attempts + source, config, **given)
    assert result.succeeded, result
    return result.stdout.decode().strip()


async def eventually(condition: Callable[[], bool], message: str) -> None:
    """Let the loop run until `condition` holds; AssertionError after the deadline."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(message)


def is_running(marker: str) -> bool:
    """Whether the command line of any process on this machine has `marker` in it."""
    for directory in Path("/proc").iterdir():
        try:
            if directory.name.isdigit() and marker.encode() in (directory / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False
