"""Full disks are named with place and remedy; /dev/full gives the kernel's own error for want of room."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollog.kernel.disk_room import naming_full_disk, no_room
from rollog.kernel.errors import DiskFull, exit_status


def write_to_a_full_disk() -> None:
    with Path("/dev/full").open("w") as full:
        full.write("something")


def test_a_disk_with_room_is_not_mentioned(tmp_path: Path) -> None:
    assert no_room(tmp_path) is None
    assert no_room(tmp_path / "not there") is None


def test_a_disk_without_room_is_named_with_what_to_do(tmp_path: Path) -> None:
    said = no_room(tmp_path, least_free_bytes=1 << 62)

    assert said is not None
    assert said.startswith(f"no room left on the disk of {tmp_path} (")
    assert said.endswith("bytes are free): make room there, and start it again")


def test_what_the_kernel_says_of_a_full_disk_gets_its_place(tmp_path: Path) -> None:
    said = f"No space left on device; make room .* below {tmp_path}"
    with pytest.raises(DiskFull, match=said) as caught, naming_full_disk(tmp_path):
        write_to_a_full_disk()
    assert exit_status(caught.value) == 1


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), naming_full_disk(tmp_path):
        (tmp_path / "not there").read_bytes()
    with pytest.raises(RuntimeError), naming_full_disk(tmp_path):
        raise RuntimeError("of something else")
