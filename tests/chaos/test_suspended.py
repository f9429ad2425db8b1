"""Suspended roles of real runs, at any moment and inside a transaction: the run goes on, and every step replays."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from support.threaded_run import settings_file, small_settings

from benchmarks.chaos.checks import verify
from benchmarks.chaos.kills import roles_of_every_run
from benchmarks.chaos.suspended_run import suspended_run
from rollog.kernel.crash_points import CrashPoint

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.chaos.killed_run import Target

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

everyone: list[Target | None] = [
    *roles_of_every_run,
    CrashPoint.TRANSACTION_OPEN,
    CrashPoint.FUTURES_PENDING,
    CrashPoint.COMMIT_SENT,
    CrashPoint.SAMPLE_ACKNOWLEDGED,
    None,
]


@pytest.mark.usefixtures("embedded_kafka")  # whose start has fetched the jars
@pytest.mark.parametrize(
    ("seconds", "time_outs"),
    [
        # Longer than every time-out that settings shorten, and than an embedded broker is waited for.
        (7.0, {"trainer": {"transaction_timeout_seconds": 2.0}, "dispatch": {"lease_seconds": 2.0}}),
        (20.0, {}),
    ],
)
def test_whoever_is_suspended_the_run_goes_on(
    tmp_path: Path,
    cache_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    time_outs: dict[str, dict[str, object]],
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    home = tmp_path / "home"
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "maven").symlink_to(cache_directory.resolve() / "maven")
    settings = small_settings(tmp_path, "suspended", run={"prefix": "rollog"}, **time_outs)
    run = suspended_run(
        "suspended",
        home,
        ["--config", str(settings_file(tmp_path / "run.toml", settings))],
        suspensions=[(target, seconds) for target in everyone],
        on_suspended=print,
    )
    lines = verify(run, weights=tmp_path / "weights")
    assert all("OFF" not in line for line in lines), lines
    told = (home / "chaos.log").read_text()
    assert "given up" not in told
    assert "status 78" not in told
