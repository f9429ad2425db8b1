"""Faults of every kind in one run, full disks, and second processes: short versions of what the benchmark does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.threaded_run import settings_file, small_settings

from benchmarks.chaos.checks import verify
from benchmarks.chaos.doubled_run import doubled_run
from benchmarks.chaos.faults import Fault, FaultKind, Whole
from benchmarks.chaos.full_disk import disks, full_disk_run
from benchmarks.chaos.kills import Role
from benchmarks.chaos.mixed import costs_of_run
from benchmarks.chaos.mixed_run import mixed_run
from benchmarks.chaos.small_disk import namespace, small_disk
from rollog.kernel.crash_points import CrashPoint
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chaos.faults import FaultTarget

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

short_time_outs: dict[str, dict[str, object]] = {
    "trainer": {"transaction_timeout_seconds": 2.0},
    "dispatch": {"lease_seconds": 2.0},
    "broker": {"connect_timeout_seconds": 5.0, "samples_partitions": 2, "max_workers": 8},
}
inside_namespace = "ROLLOG_TEST_IN_NAMESPACE"


@pytest.fixture
def home(tmp_path: Path, cache_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    home = tmp_path / "home"
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "maven").symlink_to(cache_directory.resolve() / "maven")
    return home


def options(tmp_path: Path, name: str, **sections: dict[str, object]) -> list[str]:
    settings = small_settings(tmp_path, name, run={"prefix": "rollog"}, **sections)
    return ["--config", str(settings_file(tmp_path / "run.toml", settings))]


def fault(kind: FaultKind, target: FaultTarget, seconds: float = 0.0, *, settles: bool = True) -> Fault:
    return Fault(kind=kind, target=target, wait_seconds=0.2, pause_seconds=seconds, settles=settles)


def in_order(lines: Sequence[str]) -> bool:
    return all("OFF" not in line for line in lines) and ", 0 trained twice, 0 faults" in lines[-1]


@pytest.mark.usefixtures("embedded_kafka")  # whose start has fetched the jars
def test_kills_pauses_and_second_processes_in_one_run(tmp_path: Path, home: Path) -> None:
    faults = [
        fault(FaultKind.PAUSE, CrashPoint.FUTURES_PENDING, 7.0),
        fault(FaultKind.DOUBLE, Role.TRAINER, settles=False),
        fault(FaultKind.KILL, Role.WORKER, settles=False),
        fault(FaultKind.KILL, Whole.UP),
        fault(FaultKind.PAUSE, Whole.UP, 3.0, settles=False),
        fault(FaultKind.DOUBLE, Role.DISPATCHER, settles=False),
        fault(FaultKind.PAUSE, Role.BROKER, 7.0),
        fault(FaultKind.KILL, CrashPoint.COMMIT_SENT),
    ]

    result = mixed_run(
        "mixed", home, options(tmp_path, "mixed", **short_time_outs), faults=faults, on_fault=print
    )

    assert result.run.missed == ()
    assert [(each.kind, each.target) for each in result.happened] == [
        (each.kind, each.target) for each in faults
    ]
    assert in_order(verify(result.run, weights=tmp_path / "weights"))
    assert all(cost.seconds >= 0 for cost in costs_of_run(result))


@pytest.mark.usefixtures("embedded_kafka")  # whose start has fetched the jars
def test_of_several_trainers_and_dispatchers_one_is_left_and_the_run_goes_on(
    tmp_path: Path, home: Path
) -> None:
    lines = doubled_run(
        "doubled",
        home,
        options(tmp_path, "doubled"),
        num_doubles=4,
        on_double=print,
        weights=tmp_path / "weights",
    )

    assert in_order(lines)


@pytest.mark.usefixtures("embedded_kafka")  # whose start has fetched the jars
@pytest.mark.parametrize("disk", disks)
def test_a_full_disk_is_told_and_with_room_again_the_run_goes_on(
    disk: str, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    try:
        with small_disk(tmp_path / "probe", 1 << 20):
            pass
    except ConfigError as error:
        again_in_a_namespace(request.node.nodeid, str(error))
        return

    lines = full_disk_run(f"full-{disk}", home, disk, options(tmp_path, disk), num_times=1, on_progress=print)

    assert in_order(lines)


def again_in_a_namespace(test: str, refusal: str) -> None:
    """The same test where this user may mount; skipped, with the reason, where there is no such place."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    if inside_namespace in os.environ:
        pytest.skip(refusal)
    probe = subprocess.run([*namespace, "true"], check=False, capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"{refusal}; {probe.stderr.strip()}")
    ended = subprocess.run(
        [*namespace, *command],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, inside_namespace: "1"},
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
