"""Kills in the middle of real runs: a short version of the chaos experiment."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from support.threaded_run import settings_file, small_settings

from benchmarks.chaos.checks import verify
from benchmarks.chaos.killed_run import chaos_run
from benchmarks.chaos.kills import Role, roles_of_every_run
from rollog.kernel.crash_points import CrashPoint

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.timeout(900)]


@pytest.mark.usefixtures("embedded_kafka")  # whose start has fetched the jars
def test_whatever_is_killed_nothing_is_lost_and_nothing_is_done_twice(
    tmp_path: Path, cache_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    home = tmp_path / "home"
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "maven").symlink_to(cache_directory.resolve() / "maven")
    settings = small_settings(tmp_path, "chaos", run={"prefix": "rollog"})
    run = chaos_run(
        "chaos",
        home,
        ["--config", str(settings_file(tmp_path / "run.toml", settings))],
        num_kills=12,
        seed=0,
        # Worker and trainer are killed besides, so that two of the windows are reached.
        targets=[Role.DISPATCHER, Role.BROKER, *CrashPoint],
        on_kill=print,
        longest_pause_seconds=1.0,
    )
    assert run.num_kills >= 12
    assert run.kills.keys() >= {*roles_of_every_run, *CrashPoint}, run.missed
    lines = verify(run, weights=tmp_path / "weights")
    assert all("OFF" not in line for line in lines), lines
