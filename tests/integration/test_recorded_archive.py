"""A run that an earlier version recorded can still be audited and trained again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

recorded = Path(__file__).parents[1] / "data" / "recorded"
head = "32c15780fd7dcae64bfd0d8cf909be6f8eb50a58d25457e715eda1e7e6fde99f"

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def told(tmp_path: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "rollog.cli.main", *words, "--archive", str(recorded / "run.zip")]
    ended = subprocess.run(
        [*command, "--home", str(tmp_path)], check=False, capture_output=True, text=True, timeout=250
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_an_audit_finds_nothing_off(tmp_path: Path) -> None:
    status, said = told(tmp_path, "audit", "--head", head)
    assert status == 0, said
    assert "40 records = 40 disposed of (filtered 8, trained 32)" in said


def test_every_step_is_trained_again_to_the_bit_or_it_is_said_why_not(tmp_path: Path) -> None:
    report_path = tmp_path / "report.json"
    status, said = told(
        tmp_path, "replay", "--set", f"model.path={recorded / 'model'}", "--json", str(report_path)
    )
    report = json.loads(report_path.read_text())
    assert [step["version"] for step in report["steps"]] == [1, 2, 3, 4], said
    if status == 0:
        assert "EQUAL: 4 step(s)" in said
        return
    # Another processor, machine type or other libraries: the verdict names what differs, or what the run did not
    # record, it accuses nobody, and the weights are nearly the same.
    assert "DIFFERENT" in said
    assert "this is not where the run began" in said or "but not its processor" in said
    assert "may have been changed" not in said
    apart = [float(text) for text in re.findall(r"weights apart by at most ([\d.e+-]+),", said)]
    assert max(apart, default=0.0) < 1e-3


def test_other_settings_than_the_model_are_part_of_the_archive(tmp_path: Path) -> None:
    status, said = told(tmp_path, "audit", "--set", "weights.uri=file:///elsewhere")
    assert status == 2
    assert "--set weights.uri: an archive holds everything but the model's directory" in said
