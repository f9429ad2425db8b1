"""What a run has stored, and what more samples would take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollog.kernel.errors import DataError
from rollog.run.capacity import Capacity

recorded = Path(__file__).parents[2] / "data" / "recorded" / "run.zip"


def a_capacity(**changes: int) -> Capacity:
    values = {"num_trained": 10, "num_steps": 2, "replicas": 3} | changes
    return Capacity(num_bytes={"samples": 1000, "weights files": 50_000, "objects": 0}, **values)


def test_more_samples_take_as_much_each_and_topics_are_kept_in_copies() -> None:
    assert a_capacity().of_samples(100) == {"samples": 30_000, "weights files": 500_000, "objects": 0}


def test_the_price_is_that_of_all_bytes() -> None:
    lines = list(a_capacity().lines(1_000_000, 0.5))
    assert lines[0].startswith("10 samples trained in 2 steps")
    assert lines[-2] == "1,000,000 samples: 5.3 GB, 3 copies of each topic, nothing pruned"
    assert lines[-1] == "at 0.5 a GB and month: 2.65 a month"


def test_before_anything_was_trained_nothing_can_be_said() -> None:
    with pytest.raises(DataError, match="no sample was trained yet"):
        a_capacity(num_trained=0).of_samples(1)


def test_an_archive_can_be_asked(tmp_path: Path) -> None:
    path = tmp_path / "capacity.json"
    command = [sys.executable, "-m", "rollog.cli.main", "capacity", "--archive", str(recorded)]
    ended = subprocess.run(
        [*command, "--samples", "3200", "--json", str(path)], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(path.read_text())
    assert found["num_trained"] == 32
    assert found["num_bytes"]["samples"] > 32 * 100
    assert 0 < found["num_bytes"]["weights"] < 5000
    assert found["num_bytes"]["weights files"] == 5 * 13352
    assert found["num_bytes_of_samples"]["samples"] == 100 * found["num_bytes"]["samples"]
    assert "3,200 samples" in ended.stdout
