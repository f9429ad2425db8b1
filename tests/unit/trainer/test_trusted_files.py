"""A pickle is loaded only from files that nobody else can have written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from rollog.kernel.errors import DataError
from rollog.kernel.private_directory import make_private
from trainer.checkpoints import CheckpointStore
from trainer.trusted_files import require_own_files

if TYPE_CHECKING:
    from pathlib import Path


def a_checkpoint(directory: Path) -> Path:
    def write(place: Path) -> dict[str, str]:
        (place / "engine").mkdir()
        (place / "engine" / "state.pt").write_bytes(b"state")
        return {}

    return CheckpointStore(directory / "checkpoints").save(1, "ab" * 32, write, keep=1).directory


def test_what_a_loose_umask_wrote_is_made_the_users_own(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        checkpoint = a_checkpoint(tmp_path)
    finally:
        os.umask(before)

    require_own_files(checkpoint)
    assert checkpoint.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["..", ".", "engine", "engine/state.pt"])
@pytest.mark.parametrize("right", [0o020, 0o002])
def test_what_others_can_write_is_refused(tmp_path: Path, name: str, right: int) -> None:
    checkpoint = a_checkpoint(tmp_path)
    path = (checkpoint / name).resolve()
    path.chmod(path.stat().st_mode | right)

    with pytest.raises(DataError, match=rf"{path} .*written by others.*chmod go-w"):
        require_own_files(checkpoint)


def test_files_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = a_checkpoint(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    owner = checkpoint.stat().st_uid
    if owner == 0:
        os.chown(checkpoint / "engine" / "state.pt", 12345, -1)
        owner = 12345

    with pytest.raises(DataError, match=rf"belongs to user {owner}, this process to 54321.*remove it"):
        require_own_files(checkpoint)


def test_a_link_is_refused(tmp_path: Path) -> None:
    checkpoint = a_checkpoint(tmp_path)
    (checkpoint / "other.pt").symlink_to(tmp_path)

    with pytest.raises(DataError, match=r"other\.pt is a link"):
        require_own_files(checkpoint)


def test_a_directory_is_private_and_one_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path / "home" / "runs")

    assert [
        each.stat().st_mode & 0o777 for each in (tmp_path, tmp_path / "home", tmp_path / "home" / "runs")
    ] == [
        0o755,
        0o700,
        0o700,
    ]
