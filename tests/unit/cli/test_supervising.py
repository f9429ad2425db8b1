"""Who may run the roles of a run on one machine."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from rollog.kernel.errors import ConfigError
from rollog.run.supervisor_lock import refuse_beside_supervisor, sole_supervisor

if TYPE_CHECKING:
    from pathlib import Path


def test_a_second_supervisor_of_a_run_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "first"
    with (
        sole_supervisor(directory, "first"),
        pytest.raises(ConfigError, match=f"process {os.getpid()} .*rollog watch --run first"),
        sole_supervisor(directory, "first"),
    ):
        pass


def test_the_next_one_may_when_the_first_is_gone(tmp_path: Path) -> None:
    for _ in range(2):
        with sole_supervisor(tmp_path, "first"):
            assert (tmp_path / "supervisor.lock").read_text() == f"{os.getpid()}\n"


def test_a_role_started_by_hand_beside_a_supervisor_is_refused(tmp_path: Path) -> None:
    refuse_beside_supervisor(tmp_path, "first", "trainer")
    with sole_supervisor(tmp_path, "first"):
        script = (
            "import sys; from pathlib import Path; from rollog.run.supervisor_lock import *\n"
            "refuse_beside_supervisor(Path(sys.argv[1]), 'first', 'trainer')"
        )
        own = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
        assert own.returncode == 0, "a role that the supervisor started itself"

        by_hand = [
            sys.executable,
            "-c",
            "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)",
        ]
        ended = subprocess.run(
            [*by_hand, sys.executable, "-c", script, str(tmp_path)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 1
        assert f"process {os.getpid()} runs its trainer" in ended.stderr
        assert "a second trainer would take over from it" in ended.stderr
    refuse_beside_supervisor(tmp_path, "first", "trainer")


def test_who_only_looks_at_the_lock_is_not_in_the_way(tmp_path: Path) -> None:
    with sole_supervisor(tmp_path, "first"):
        pass
    with (tmp_path / "supervisor.lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with sole_supervisor(tmp_path, "first"):
            pass
