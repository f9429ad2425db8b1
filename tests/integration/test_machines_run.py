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
    assert [phase["name"] for phase in found["phases"]] == [
        "undisturbed",
        "worker_half_open",
        "store_cut",
        "undisturbed",
    ]
    assert found["recount"]["num_trained_twice"] == 0
    assert set(found["restarts"].values()) == {0}
