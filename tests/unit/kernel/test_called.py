"""How messages name the program, so that what they say can be copied into the shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rollog.kernel.called import called_as

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in a directory that the shell does not search."""
    place = tmp_path / "env" / "bin" / "rollog"
    place.parent.mkdir(parents=True)
    place.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return place


def test_a_program_that_the_shell_does_not_find_is_named_by_its_place(program: Path, tmp_path: Path) -> None:
    assert called_as("env/bin/rollog", tmp_path) == "env/bin/rollog"
    assert called_as(str(program), tmp_path) == "env/bin/rollog"
    assert called_as("./rollog", program.parent) == "./rollog"
    assert called_as(str(program), tmp_path / "elsewhere") == str(program)


def test_a_program_that_the_shell_finds_is_named_by_its_name(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(program.parent))
    assert called_as(str(program), tmp_path) == "rollog"


def test_a_program_that_was_called_as_a_module_is_named_by_its_name(tmp_path: Path) -> None:
    assert called_as("/somewhere/rollog/cli/main.py", tmp_path) == "rollog"
