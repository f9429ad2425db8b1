"""The self-test: it passes where the walls hold, and names each that does not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.sandboxes import finish

from producers.sandbox.config import SandboxConfig, SandboxResult
from producers.sandbox.escapes import quick_escapes, remedies
from producers.sandbox.sandbox import Sandbox
from producers.sandbox.self_test import check_walls, walls_broken
from rollog.kernel.errors import SandboxRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

every_wall = {wall for escape in quick_escapes for wall in escape.walls}


def without_walls(directory: Path) -> Callable[[SandboxConfig, str, bytes], object]:
    """Runs scripts as plain processes of this user."""

    async def run(config: SandboxConfig, source: str, stdin: bytes) -> SandboxResult:
        del config
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            source,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=directory,
        )
        stdout, _ = await process.communicate(stdin)
        return SandboxResult(exit_status=process.returncode, stdout=stdout, stderr=b"", seconds=0.0)

    return run


def test_all_walls_hold_on_this_machine() -> None:
    assert finish(walls_broken(SandboxConfig())) == set()


def test_without_a_sandbox_every_wall_is_named_as_broken(tmp_path: Path) -> None:
    run = without_walls(tmp_path)
    broken = finish(walls_broken(SandboxConfig(), run=run, hold_seconds=3.0))  # type: ignore[arg-type]
    assert broken == every_wall


def test_every_wall_has_a_remedy() -> None:
    assert set(remedies) == every_wall


def test_a_script_that_fails_counts_as_a_broken_wall() -> None:
    result = SandboxResult(exit_status=1, stdout=b"[]", stderr=b"", seconds=0.0)
    assert all(escape.walls_broken(result) == set(escape.walls) for escape in quick_escapes)


def test_a_secret_in_the_environment_of_whoever_starts_the_sandbox_is_not_seen_inside() -> None:
    program = (
        "import asyncio\n"
        "from producers.sandbox.config import SandboxConfig\n"
        "from producers.sandbox.self_test import run_script\n"
        'source = \'import glob\\nfor path in glob.glob("/proc/[0-9]*/environ"):\\n'
        ' try: print(open(path, "rb").read())\\n except OSError: pass\'\n'
        "print(asyncio.run(run_script(SandboxConfig(), source, b'')).stdout.decode())\n"
    )
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "SECRET": "planted-secret"}
    printed = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "LANG=C.UTF-8" in printed
    assert "planted" not in printed


@pytest.fixture
def readable_directory() -> Iterator[Path]:
    """A directory that every user can read; those of pytest are its own user's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_machine_without_user_namespaces_is_refused_with_the_remedy(readable_directory: Path) -> None:
    broken = readable_directory / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(SandboxRefused, match=r"No permissions to create new namespace.*max_user_namespaces"):
        finish(check_walls(SandboxConfig(bubblewrap=broken)))


def test_a_bubblewrap_that_is_not_there_is_refused() -> None:
    with pytest.raises(SandboxRefused, match="bubblewrap = /nowhere/bwrap is no program"):
        finish(Sandbox(SandboxConfig(bubblewrap=Path("/nowhere/bwrap"))).run(["true"]))


class LeakySandbox(Sandbox):
    """One whose walls do not hold."""

    async def _test_walls(self) -> None:
        raise SandboxRefused("the wall `network` does not hold")


def test_a_sandbox_whose_walls_do_not_hold_runs_nothing() -> None:
    with pytest.raises(SandboxRefused, match="network"):
        finish(LeakySandbox().run(["true"]))


def test_a_sandbox_whose_walls_do_not_hold_runs_commands_where_the_user_says_unsafe(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = finish(LeakySandbox(SandboxConfig(unsafe=True)).run(["true"]))
    assert result.succeeded
    assert "a sandbox that does not hold" in caplog.text
