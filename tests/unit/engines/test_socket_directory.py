"""Where vLLM's sockets lie."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from producers.engines.socket_directory import max_path_bytes, socket_directory
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def short() -> Iterator[Path]:
    """A state directory whose path leaves room for a socket's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def temp(short: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temp directory of this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    return short


def test_sockets_lie_below_the_state_directory_and_go_with_their_worker(short: Path) -> None:
    old = os.umask(0)
    try:
        made, other = socket_directory(short / "runs"), socket_directory(short / "runs")
    finally:
        os.umask(old)
    assert made.path.parent == other.path.parent == short / "runs" / "sockets"
    assert made.path != other.path
    assert stat.S_IMODE(made.path.stat().st_mode) == stat.S_IMODE(made.path.parent.stat().st_mode) == 0o700
    (made.path / "socket").touch()
    made.close()
    made.close()
    assert not made.path.exists()
    assert other.path.is_dir()
    other.close()


def test_a_state_directory_with_a_long_path_has_its_sockets_in_the_temp_directory(temp: Path) -> None:
    long = temp / ("x" * max_path_bytes)
    made, other = socket_directory(long), socket_directory(temp / ("y" * max_path_bytes))
    assert made.path.parent.parent == temp
    assert made.path.parent != other.path.parent
    assert len(os.fsencode(made.path)) <= max_path_bytes
    assert stat.S_IMODE(made.path.parent.stat().st_mode) == 0o700
    made.close()
    other.close()


def test_a_directory_that_others_may_enter_or_a_link_is_refused(temp: Path) -> None:
    made = socket_directory(None)
    parent = made.path.parent
    made.close()
    parent.chmod(0o755)
    with pytest.raises(ConfigError, match=r"rollog-\d+-[0-9a-f]{16} \(mode 0755.*chmod 700"):
        socket_directory(None)
    (parent / "lock").unlink()
    parent.rmdir()
    elsewhere = temp / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    parent.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="must be a directory of user"):
        socket_directory(None)


def test_a_temp_directory_with_a_long_path_is_refused(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temp / ("x" * max_path_bytes)))
    with pytest.raises(ConfigError, match=r"too long a path .*--home"):
        socket_directory(None)
