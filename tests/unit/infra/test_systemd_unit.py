"""The unit that docs/deploy.md shows is one that systemd takes, and starts what is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

root = Path(__file__).parents[3]
name = "rollog@.service"


def shown_unit() -> str:
    found = re.search(
        r"```ini\n# /etc/systemd/system/(\S+)\n(.*?)```", (root / "docs/deploy.md").read_text(), re.DOTALL
    )
    assert found is not None
    assert found[1] == name
    return found[2]


def complaints(directory: Path, unit: str) -> str:
    """What systemd says of a unit; nothing where it is well."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there: install systemd")
    path = directory / name
    path.write_text(unit)
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return ended.stdout + ended.stderr


def test_systemd_takes_the_unit_as_it_is_shown(tmp_path: Path) -> None:
    assert complaints(tmp_path, shown_unit()) == ""


def test_the_look_at_the_unit_is_not_blind(tmp_path: Path) -> None:
    wrong = shown_unit().replace("KillMode=mixed", "KillMode=some").replace("User=", "Usr=")
    said = complaints(tmp_path, wrong)
    assert "kill mode" in said
    assert "Usr" in said


def test_the_unit_starts_a_script_of_this_repository() -> None:
    (command,) = re.findall(r"^ExecStart=/bin/sh /opt/rollog/(\S+) ", shown_unit(), re.MULTILINE)
    assert (root / command).is_file()
