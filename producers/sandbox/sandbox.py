"""Running one command of untrusted code: it starts, is held to its limits, and nothing of it is left."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from producers.sandbox.config import SandboxConfig, SandboxResult
from producers.sandbox.self_test import check_walls
from producers.sandbox.session import SandboxSession
from rollog.kernel.errors import SandboxRefused
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

_log = get_logger("sandbox")


class Sandbox:
    """Starts sandboxes of one kind, any number at once, after it has made sure that they hold on this machine.

    It owns no process of its own. Each `run` and each `session` is a sandbox by itself, with empty directories.
    """

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self._testing = asyncio.Lock()
        self._is_tested = False

    async def start(self) -> None:
        """Try to get out, about a second, once: the first `run` or `session` does it too.

        Raises SandboxRefused when a wall does not hold, or, if the configuration says `unsafe`, logs which.
        """
        async with self._testing:
            if self._is_tested:
                return
            try:
                await self._test_walls()
            except SandboxRefused as error:
                if not self.config.unsafe:
                    raise
                _log.warning("untrusted code runs in a sandbox that does not hold", error=str(error))
            self._is_tested = True

    async def _test_walls(self) -> None:
        await check_walls(self.config)

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> SandboxResult:
        """Run a list of words in a sandbox of its own, whose work directory has `files`, by relative paths.

        When this returns or is cancelled, nothing runs of what it started. Raises SandboxRefused, ValueError for what
        cannot be a command or a path, and SandboxError when the files do not fit.
        """
        async with self.session() as session:
            for path, content in (files or {}).items():
                await session.write(path, content)
            return await session.run(command, stdin=stdin, environment=environment)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[SandboxSession]:
        """A sandbox for several commands, one after another. Raises SandboxRefused."""
        await self.start()
        async with SandboxSession(self.config) as session:
            yield session
