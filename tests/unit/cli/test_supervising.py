"""Who may run the roles of a run on one machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from rollog.kernel.errors import ConfigError
from rollog.run.local_run import sole_supervisor

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
