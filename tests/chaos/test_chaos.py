"""Kills in the middle of real runs: two short versions of the chaos experiment."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from support.threaded_run import settings_file, small_settings

from benchmarks.chaos.checks import verify
from benchmarks.chaos.killed_run import chaos_run
from benchmarks.chaos.kills import Kill, Role
from rollog.kernel.crash_points import CrashPoint

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]


# Worker and trainer are killed besides where only they reach a window on their way back.
@pytest.mark.parametrize(
    ("num_kills", "targets", "lets_versions_go"),
    [
        # So few versions are a chain of patches whose bases all stay.
        pytest.param(4, (Role.BROKER, CrashPoint.GRANT_SENT, CrashPoint.COMMIT_SENT), False, id="some"),
        pytest.param(len(CrashPoint) + 2, (Role.DISPATCHER, Role.BROKER, *CrashPoint), True, id="all"),
    ],
)
@pytest.mark.usefixtures("embedded_kafka")  # whose start has fetched the jars
def test_whatever_is_killed_nothing_is_lost_and_nothing_is_done_twice(
    num_kills: int,
    targets: tuple[Role | CrashPoint, ...],
    *,
    lets_versions_go: bool,
    tmp_path: Path,
    cache_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    home = tmp_path / "home"
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "maven").symlink_to(cache_directory.resolve() / "maven")
    # In 16 bits versions are patches, which workers apply. Only some of them stay.
    settings = small_settings(
        tmp_path,
        "chaos",
        run={"prefix": "rollog"},
        model={"dtype": "bfloat16"},
        optimizer={"learning_rate": 1e-5},
        trainer={"keep_newest_weights": 2, "weights_grace_seconds": 1.0},
        weights={"uri": (tmp_path / "weights" / "chaos").as_uri()},
    )
    run = chaos_run(
        "chaos",
        home,
        ["--config", str(settings_file(tmp_path / "run.toml", settings))],
        num_kills=num_kills,
        seed=0,
        targets=targets,
        on_kill=print,
        longest_pause_seconds=1.0,
    )
    assert run.num_kills >= num_kills
    provoking = {Kill(0.0, target).provoked_by for target in targets} - {None}
    assert run.kills.keys() >= {*targets, *provoking}, run.missed
    weights = tmp_path / "weights" / "chaos"
    lines = verify(run, weights=weights)
    assert all("OFF" not in line for line in lines), lines
    assert not lets_versions_go or any("which the run let go by its rule" in line for line in lines), lines
    assert not list(weights.glob(".partial-*"))
