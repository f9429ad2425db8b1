"""A copy whose owner died while it was patched: nobody takes it for a version, and the next one makes it anew."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from support.copy_process import bring_and_die
from support.patched_versions import are_equal, found_at, publish_versions, versions_of

from rollog.kernel.crash_points import CrashPoint
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.copies import NoRoomForCopy, VersionCopy
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from pathlib import Path

    from schemas import WeightVersion

points = (CrashPoint.PATCHES_DECODED, CrashPoint.COPY_BETWEEN_VERSIONS)
versions = versions_of(4)


@pytest.fixture
def store(tmp_path: Path) -> WeightsStore:
    return WeightsStore(str(tmp_path / "store"))


@pytest.fixture
def notices(store: WeightsStore) -> list[WeightVersion]:
    return publish_versions(store, versions)


def killed(store: WeightsStore, notices: list[WeightVersion], tmp_path: Path, point: CrashPoint) -> Path:
    """Where a process died on the way from version 1 to 2."""
    directory = tmp_path / "copy"
    store.bring(notices[1], VersionCopy(directory))
    before = shards_in(directory)
    assert bring_and_die(store, directory, [notices[2]], tmp_path / "marks", point) == -signal.SIGKILL
    assert list((tmp_path / "marks").iterdir()) == []
    assert shards_in(directory) != before or point is CrashPoint.PATCHES_DECODED
    return directory


def shards_in(directory: Path) -> set[bytes]:
    """What is in them."""
    return {path.read_bytes() for path in directory.glob("*.safetensors")}


def without(store: WeightsStore, *notices: WeightVersion) -> None:
    """Delete all but the manifests."""
    for notice in notices:
        for name in store.file_names(notice)[:-1]:
            store.delete(name)


def file_sizes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


@pytest.mark.parametrize("point", points)
def test_a_copy_that_is_half_patched_is_of_no_version_and_made_anew(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path, point: CrashPoint
) -> None:
    copy = VersionCopy(killed(store, notices, tmp_path, point))
    assert copy.pair is None

    path = store.bring(notices[2], copy)

    assert are_equal(found_at(path), versions[2])
    assert {each.suffix for each in copy.directory.iterdir()} == {".manifest", ".safetensors"}


@pytest.mark.parametrize("wanted", [1, 3])
def test_who_wants_another_version_makes_that_one(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path, wanted: int
) -> None:
    directory = killed(store, notices, tmp_path, CrashPoint.COPY_BETWEEN_VERSIONS)
    assert are_equal(found_at(store.bring(notices[wanted], VersionCopy(directory))), versions[wanted])


def test_making_it_anew_takes_no_more_room_than_the_half_patched_one_has(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    directory = killed(store, notices, tmp_path, CrashPoint.COPY_BETWEEN_VERSIONS)
    shards = {path.stat().st_ino for path in directory.glob("*.safetensors")}
    patches = file_sizes(directory) - sum(path.stat().st_size for path in directory.glob("*.safetensors"))

    # Patches of this version are there, that of the version before was deleted when it was written.
    with pytest.raises(NoRoomForCopy):
        store.bring(notices[2], VersionCopy(directory, free_bytes=lambda _: 0))
    path = store.bring(notices[2], VersionCopy(directory, free_bytes=lambda _: 2 * patches))

    assert are_equal(found_at(path), versions[2])
    assert {each.stat().st_ino for each in directory.glob("*.safetensors")} == shards


@pytest.mark.parametrize("point", points)
def test_without_a_full_form_in_the_store_there_is_no_version(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path, point: CrashPoint
) -> None:
    directory = killed(store, notices, tmp_path, point)
    without(store, notices[0])
    copy = VersionCopy(directory)
    with pytest.raises((WeightsError, OSError)):
        store.bring(notices[2], copy)
    assert copy.pair is None


def test_what_an_earlier_rollog_left_beside_a_half_patched_copy_is_deleted(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    directory = killed(store, notices, tmp_path, CrashPoint.COPY_BETWEEN_VERSIONS)
    stem = notices[2].name.removesuffix(".manifest")
    for name in (f"{stem}.values", f"{notices[2].name}.next"):
        (directory / name).write_bytes(b"left")
    assert are_equal(found_at(store.bring(notices[2], VersionCopy(directory))), versions[2])
    assert {each.suffix for each in directory.iterdir()} == {".manifest", ".safetensors"}


@pytest.mark.parametrize("point", points)
def test_a_process_may_die_again_and_again(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path, point: CrashPoint
) -> None:
    directory = killed(store, notices, tmp_path, point)
    status = bring_and_die(store, directory, notices[2:], tmp_path / "marks", point)
    assert status == -signal.SIGKILL
    assert are_equal(found_at(store.bring(notices[3], VersionCopy(directory))), versions[3])
