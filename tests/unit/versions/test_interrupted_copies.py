"""A copy whose owner died while it was patched: the next one goes on with what it finds, or makes it anew."""

from __future__ import annotations

import signal
import struct
from typing import TYPE_CHECKING

import pytest
from support.copy_process import bring_and_die
from support.patched_versions import are_equal, found_at, publish_versions, versions_of

from rollog.kernel.crash_points import CrashPoint
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.blocks import Layout
from rollog.kernel.versions.chains import VersionPair
from rollog.kernel.versions.copies import VersionCopy
from rollog.kernel.versions.decoded_values import DecodedValues
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from pathlib import Path

    from schemas import WeightVersion

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
    assert bring_and_die(store, directory, [notices[2]], tmp_path / "marks", point) == -signal.SIGKILL
    assert list((tmp_path / "marks").iterdir()) == []
    return directory


def without(store: WeightsStore, *notices: WeightVersion) -> None:
    """Delete all but the manifests."""
    for notice in notices:
        for name in store.file_names(notice)[:-1]:
            store.delete(name)


def test_decoded_values_make_a_version_without_the_store_when_their_writer_died_over_the_copy(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    directory = killed(store, notices, tmp_path, CrashPoint.COPY_BETWEEN_VERSIONS)
    copy = VersionCopy(directory)
    assert copy.pair is None
    without(store, *notices)

    path = store.bring(notices[2], copy)

    assert are_equal(found_at(path), versions[2])
    assert {each.suffix for each in directory.iterdir()} == {".manifest", ".safetensors"}


def test_values_that_were_written_in_part_are_written_again(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    directory = killed(store, notices, tmp_path, CrashPoint.COPY_BETWEEN_VERSIONS)
    # The shards of the new version; of those of the old one some stay as they are.
    done = store.fetch(notices[2], tmp_path / "done")
    for number, path in enumerate(sorted(directory.glob("*.safetensors"))):
        new = done.with_name(path.name.replace(path.name[:24], done.name[:24]))
        assert new.stat().st_size == path.stat().st_size
        if number % 2:
            path.write_bytes(new.read_bytes())
            path.rename(directory / new.name)
    without(store, *notices)

    assert are_equal(found_at(store.bring(notices[2], VersionCopy(directory))), versions[2])


def test_a_copy_beside_which_patches_are_decoded_is_still_of_its_version(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    directory = killed(store, notices, tmp_path, CrashPoint.PATCHES_DECODED)
    assert VersionCopy(directory).pair == VersionPair(1, notices[1].sha256)
    without(store, notices[0], notices[1])

    copy = VersionCopy(directory)
    assert are_equal(found_at(store.bring(notices[1], copy)), versions[1])
    assert are_equal(found_at(store.bring(notices[3], copy)), versions[3])


def test_who_wants_a_later_version_goes_on_from_the_one_that_was_finished(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    directory = killed(store, notices, tmp_path, CrashPoint.COPY_BETWEEN_VERSIONS)
    without(store, *notices[:3])
    assert are_equal(found_at(store.bring(notices[3], VersionCopy(directory))), versions[3])


@pytest.mark.parametrize(
    "harm",
    ["values are cut", "values are gone", "values are moved", "a shard is altered", "a shard is cut"],
)
def test_what_cannot_be_finished_is_made_anew_from_a_full_form(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path, harm: str
) -> None:
    directory = killed(store, notices, tmp_path, CrashPoint.COPY_BETWEEN_VERSIONS)
    (values,) = directory.glob("*.values")
    shard = max(directory.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    if harm == "values are cut":
        values.write_bytes(values.read_bytes()[:-3])
    elif harm == "values are gone":
        values.unlink()
    elif harm == "values are moved":
        data = bytearray(values.read_bytes())
        data[8] ^= 1  # of the first element of the first record
        values.write_bytes(data)
    elif harm == "a shard is altered":
        data = bytearray(shard.read_bytes())
        data[-1] ^= 64
        shard.write_bytes(data)
    else:
        shard.write_bytes(shard.read_bytes()[:-2])

    assert are_equal(found_at(store.bring(notices[2], VersionCopy(directory))), versions[2])

    without(store, notices[0])
    with pytest.raises(WeightsError):
        store.fetch(notices[2], tmp_path / "joiner")


@pytest.mark.parametrize(
    ("first", "num_elements"), [(1, 2), (2 << 20, 1), (1 << 20, 11), (0, (1 << 20) + 1), (0, 0)]
)
def test_values_of_another_tensor_are_refused_before_any_is_written(
    tmp_path: Path, first: int, num_elements: int
) -> None:
    values = tmp_path / "values"
    fitting = struct.pack("<IIQI", 0, 0, 1 << 20, 10) + bytes(20)
    layouts = [Layout((1 << 20) + 10, 2)]
    values.write_bytes(fitting)
    DecodedValues(values, layouts)
    values.write_bytes(fitting + struct.pack("<IIQI", 0, 0, first, num_elements) + bytes(2 * num_elements))
    with pytest.raises(WeightsError, match="do not fit tensor 0"):
        DecodedValues(values, layouts)


@pytest.mark.parametrize("point", [CrashPoint.PATCHES_DECODED, CrashPoint.COPY_BETWEEN_VERSIONS])
def test_a_process_may_die_again_and_again(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path, point: CrashPoint
) -> None:
    directory = killed(store, notices, tmp_path, point)
    status = bring_and_die(store, directory, notices[2:], tmp_path / "marks", point)
    assert status == -signal.SIGKILL
    assert are_equal(found_at(store.bring(notices[3], VersionCopy(directory))), versions[3])
