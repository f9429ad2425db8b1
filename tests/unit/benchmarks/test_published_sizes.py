"""What publishing takes by size: versions are published by the trainer's code, and stand beside their floors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.harness.random_model import shapes
from benchmarks.weights.floors import copy_seconds, read_seconds, sha256_seconds, write_seconds
from benchmarks.weights.published_sizes import (
    Floors,
    Form,
    Published,
    Publishing,
    Size,
    in_own_process,
    publish,
)
from benchmarks.weights.sizes import figures_of, why_left_out

if TYPE_CHECKING:
    from pathlib import Path

gigabyte = 1_000_000_000


def a_publishing(directory: Path, form: Form) -> Publishing:
    return Publishing(shape=shapes["tiny"], form=form, num_versions=2, directory=directory)


def a_size(*, is_patch: bool, memory_bytes: int = 2 * gigabyte) -> Size:
    version = Published(seal_seconds=0.2, write_seconds=3.0, stored_bytes=gigabyte // 50, is_patch=is_patch)
    floor = Floors(copy_seconds=0.1, sha256_seconds=2.0, write_seconds=1.0)
    return Size(num_bytes=gigabyte, memory_bytes=memory_bytes, versions=(version,), floors=(floor,))


@pytest.mark.parametrize("form", ["full", "patch", "elsewhere"])
def test_versions_are_stored_in_the_form_that_was_asked_for_and_nothing_is_left(
    tmp_path: Path, form: Form
) -> None:
    size = publish(a_publishing(tmp_path / "weights", form))
    assert len(size.versions) == len(size.floors) == 2
    for version in size.versions:
        assert version.is_patch == (form == "patch")
        assert (version.stored_bytes < 0.05 * size.num_bytes) == (form == "patch")
        assert version.seal_seconds > 0
        assert version.write_seconds > 0
    assert list(tmp_path.iterdir()) == []


def test_memory_is_that_of_a_process_that_does_nothing_else(tmp_path: Path) -> None:
    held = bytearray(b"x") * (400 << 20)
    size = in_own_process(a_publishing(tmp_path / "weights", "full"))
    assert size.num_bytes < size.memory_bytes < len(held)


def test_each_figure_stands_beside_its_floor() -> None:
    figures = {figure.name: figure for figure in figures_of("0.5b", "patch", a_size(is_patch=True))}
    stem = "weights.sizes.0.5b.patch"
    seal, write = figures[f"{stem}.seal"], figures[f"{stem}.write"]
    assert (seal.value, seal.ideal, seal.target) == (0.2, 0.1, 0.4)
    assert figures[f"{stem}.seal_ratio"].value == 2.0
    assert (write.value, write.ideal) == (3.0, 2.0)
    assert figures[f"{stem}.write_ratio"].value == 1.5
    assert (figures[f"{stem}.stored"].value, figures[f"{stem}.stored"].target) == (0.02, 0.03)
    assert figures[f"{stem}.memory"].value == 2.0
    assert figures[f"{stem}.memory"].target == (gigabyte + (2 << 30)) / gigabyte


def test_a_version_that_is_no_patch_counts_as_none() -> None:
    names = [figure.name for figure in figures_of("0.5b", "patch", a_size(is_patch=False))]
    assert names == ["weights.sizes.0.5b.patch.memory"]


def test_a_size_is_left_out_where_memory_or_disk_has_no_room_for_it() -> None:
    assert why_left_out(gigabyte, 5 * gigabyte, 3 * gigabyte) is None
    assert why_left_out(gigabyte, None, 3 * gigabyte) is None
    assert "memory" in (why_left_out(gigabyte, 4 * gigabyte, 3 * gigabyte) or "")
    assert "disk" in (why_left_out(gigabyte, 5 * gigabyte, 2 * gigabyte) or "")


def test_floors_are_measured_and_leave_no_file(tmp_path: Path) -> None:
    num_bytes = 20_000_001
    floors = [
        copy_seconds(num_bytes),
        sha256_seconds(num_bytes),
        write_seconds(num_bytes, tmp_path / "floor"),
        read_seconds(num_bytes, tmp_path / "floor"),
    ]
    assert all(seconds > 0 for seconds in floors)
    assert list(tmp_path.iterdir()) == []
