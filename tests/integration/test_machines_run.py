"""A run over four hosts whose network fails: the experiment, with one phase, ends clean. Needs root, and iproute2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.machines.hosts import what_is_missing

root = Path(__file__).parents[2]
pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(autouse=True)
def hosts_can_be_made() -> None:
    missing = what_is_missing()
    if missing is not None:
        pytest.skip(missing)


def test_nothing_is_lost_where_a_worker_is_cut_off_and_the_store_is_away(
    tmp_path: Path, cache_directory: Path
) -> None:
    command = [sys.executable, "-m", "benchmarks.machines", "--only", "worker_half_open,store_cut"]
    home = tmp_path / "home"
    home.mkdir()
    (home / "cache").symlink_to(cache_directory.resolve())
    results = tmp_path / "results.json"
    ended = subprocess.run(
        [*command, "--home", str(home), "--keep", str(tmp_path / "run"), "--results", str(results)],
        check=False,
        capture_output=True,
        text=True,
        cwd=root,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = json.loads(results.read_text())
    assert [phase["name"] for phase in found["phases"]] == ["worker_half_open", "store_cut"]
    links = found["links"]
    assert links["undisturbed"]["loss"] < 0.02
    assert links["loss_5_percent"]["loss"] == pytest.approx(0.05, abs=0.03)
    assert links["delay_50ms"]["round_trip_seconds"] >= 0.1
    assert links["rate_200mbit"]["megabits_per_second"] < 210
    assert found["recount"]["num_trained_twice"] == 0
    assert set(found["restarts"].values()) == {0}
