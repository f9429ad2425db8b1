"""The copy that a reader has of one version: files are overwritten where they fit, and nothing else takes room."""

from __future__ import annotations

import errno
import io
import shutil
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest
import torch
from support.counted_store import CountedFiles
from support.exports import export_of
from support.patched_versions import are_equal, found_at, publish_versions, versions_of

from rollog.kernel.errors import WeightsError
from rollog.kernel.store_folder import StoreFolder
from rollog.kernel.versions.chains import VersionPair
from rollog.kernel.versions.checking import check_shard
from rollog.kernel.versions.copies import NoRoomForCopy, VersionCopy
from rollog.kernel.versions.files import read_manifest, weights_files
from rollog.kernel.versions.mapped_shards import MappedShards

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.weights import WeightsStore
    from schemas import WeightVersion

versions = versions_of(7)


@pytest.fixture
def files() -> CountedFiles:
    return CountedFiles()


@pytest.fixture
def store(files: CountedFiles) -> WeightsStore:
    return files.seen_by()


@pytest.fixture
def notices(store: WeightsStore) -> list[WeightVersion]:
    return publish_versions(store, versions[:3], full=range(3))


def inodes(path: Path) -> list[int]:
    return [file.stat().st_ino for file in weights_files(path)]


def test_shards_of_the_same_sizes_are_overwritten_and_nothing_else_stays(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    copy = VersionCopy(tmp_path / "copy")
    before = inodes(store.bring(notices[0], copy))
    for notice, tensors in zip(notices[1:], versions[1:3], strict=True):
        path = store.bring(notice, copy)
        assert are_equal(found_at(path), tensors)
        assert inodes(path) == before
        assert len(before) > 1
        assert set(copy.directory.iterdir()) == {path, *weights_files(path)}


def test_they_need_no_room(store: WeightsStore, notices: list[WeightVersion], tmp_path: Path) -> None:
    room = 10**9
    copy = VersionCopy(tmp_path / "copy", free_bytes=lambda _: room)
    store.bring(notices[0], copy)
    room = 0
    assert are_equal(found_at(store.bring(notices[2], copy)), versions[2])
    with pytest.raises(NoRoomForCopy):
        store.bring(notices[2], VersionCopy(tmp_path / "other", free_bytes=lambda _: room))


def test_a_version_with_other_shards_is_made_anew(store: WeightsStore, tmp_path: Path) -> None:
    fine = store.publish_tensors(0, export_of(versions[0]), most_bytes=4000)
    coarse = store.publish_tensors(1, export_of(versions[1]), most_bytes=3_000_000)
    copy = VersionCopy(tmp_path / "copy")
    for notice, tensors in ((fine, versions[0]), (coarse, versions[1]), (fine, versions[0])):
        path = store.bring(notice, copy)
        assert are_equal(found_at(path), tensors)
        assert set(copy.directory.iterdir()) == {path, *weights_files(path)}


def test_an_altered_shard_leaves_no_version_and_the_next_one_comes(
    files: CountedFiles, store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    copy = VersionCopy(tmp_path / "copy")
    store.bring(notices[0], copy)
    *_, last, _ = (f"{files.root}/{name}" for name in store.file_names(notices[1]))
    data = bytearray(files.cat_file(last))
    data[-1] ^= 1
    files.pipe_file(last, bytes(data))
    with pytest.raises(WeightsError, match="has a leaf"):
        store.bring(notices[1], copy)
    assert copy.pair is None
    path = store.bring(notices[2], copy)
    assert are_equal(found_at(path), versions[2])
    assert set(copy.directory.iterdir()) == {path, *weights_files(path)}


def test_what_a_killed_process_left_half_overwritten_is_no_version_and_is_used_again(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    directory = tmp_path / "copy"
    path = store.bring(notices[0], VersionCopy(directory))
    before = inodes(path)
    for number, shard in enumerate(weights_files(path)):
        shard.write_bytes(shard.read_bytes()[: 100 * number].ljust(shard.stat().st_size, b"x"))
        shard.rename(directory / f".partial-{number:016x}")
    (directory / f".partial-{99:016x}").write_bytes(b"of a size that no shard has")
    path.unlink()

    copy = VersionCopy(directory)
    assert copy.pair is None
    path = store.bring(notices[1], copy)
    assert are_equal(found_at(path), versions[1])
    assert set(inodes(path)) == set(before)
    assert set(directory.iterdir()) == {path, *weights_files(path)}


class CutNearby:
    """Files nearer than the store's, which end early."""

    def open(self, name: str) -> IO[bytes]:
        if not name.endswith(".safetensors"):
            raise FileNotFoundError
        return io.BytesIO(b"x" * 500)


def test_what_a_refused_file_left_in_a_shard_is_overwritten_by_the_stores(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    copy = VersionCopy(tmp_path / "copy")
    before = inodes(store.bring(notices[0], copy))
    folder = vars(store)["_folder"]
    path = copy.bring(StoreFolder(folder.filesystem, folder.root, CutNearby()), notices[1])
    assert are_equal(found_at(path), versions[1])
    assert inodes(path) == before


def test_where_files_cannot_be_mapped_they_are_made_anew(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    copy = VersionCopy(tmp_path / "copy")
    store.bring(notices[0], copy)
    monkeypatch.setattr(MappedShards, "bytes_of", fails)
    path = store.bring(notices[1], copy)
    assert are_equal(found_at(path), versions[1])
    assert set(copy.directory.iterdir()) == {path, *weights_files(path)}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mappings are read from /proc")
def test_a_fetch_that_failed_keeps_nothing_that_another_one_deletes(
    files: CountedFiles, store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    one, other = VersionCopy(tmp_path / "copy"), VersionCopy(tmp_path / "copy")
    store.bring(notices[0], one)
    files.rm_file(f"{files.root}/{store.file_names(notices[1])[-2]}")
    with pytest.raises(WeightsError) as caught:
        store.bring(notices[1], one)
    other.discard()
    assert caught.value.__traceback__ is not None
    assert not deleted_and_mapped(tmp_path / "copy")


def test_a_copy_whose_directory_is_gone_is_empty(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    copy = VersionCopy(tmp_path / "copy")
    for notice in notices[:2]:
        store.bring(notice, copy)
    shutil.rmtree(copy.directory)
    assert copy.pair is None


class OnlyReads:
    """A file of a filesystem that cannot read into memory that is there."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(min(size, 300_000) if size >= 0 else size)


@pytest.mark.parametrize("large", [0, 550_000])
def test_a_header_may_be_larger_than_all_tensors(tmp_path: Path, large: int) -> None:
    tensors = {f"{'long' * 30}{number:05}": torch.tensor([number]) for number in range(8000)}
    if large:
        tensors["large"] = torch.zeros(large, dtype=torch.int16)
    store = CountedFiles().seen_by()
    notice = store.publish_tensors(0, export_of(tensors))
    path = store.fetch(notice, tmp_path)
    (shard,) = read_manifest(path)[0].shards
    assert len(shard.header) > max(1 << 20, 2 * large)
    assert are_equal(found_at(path), tensors)


def test_every_piece_is_compared_with_memory_used_in_turn(store: WeightsStore, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    sizes = [600_000, 9_000_000, 7, 700_000, 650_000, 5, 600_001, 800_000, 3, 4, 900_000, 650_000]
    tensors = {
        f"t{number:02}": torch.randint(0, 100, (size,), generator=draw, dtype=torch.int16)
        for number, size in enumerate(sizes)
    }
    path = store.fetch(store.publish_tensors(0, export_of(tensors)), tmp_path)
    (shard,) = read_manifest(path)[0].shards
    data = weights_files(path)[0].read_bytes()
    sources: list[Any] = [io.BytesIO(data), OnlyReads(data)]
    for source in sources:
        target = io.BytesIO()
        check_shard(source, shard, target)
        assert target.getvalue() == data
    position = len(shard.header)
    for tensor in shard.tensors:
        altered = bytearray(data)
        altered[position + tensor.spec.num_bytes - 1] ^= 1
        with pytest.raises(WeightsError, match=tensor.spec.name):
            check_shard(io.BytesIO(altered), shard)
        position += tensor.spec.num_bytes
    for cut in (io.BytesIO(data[:-1]), OnlyReads(data[:-1])):
        with pytest.raises(WeightsError, match="fewer bytes"):
            check_shard(cut, shard)  # type: ignore[arg-type]


def test_a_disk_without_room_is_named_before_anything_is_fetched(store: WeightsStore, tmp_path: Path) -> None:
    first, second = publish_versions(store, versions[:2])
    copy = VersionCopy(tmp_path / "copy", free_bytes=lambda _: 2_000_000)
    with pytest.raises(WeightsError, match=r"copy has room for 2000000 bytes, and 2\d{6} are needed"):
        store.bring(first, copy)
    assert list((tmp_path / "copy").iterdir()) == []
    with_room = VersionCopy(tmp_path / "copy")
    store.bring(first, with_room)
    with_room.free_bytes = lambda _: 2_000_000
    assert are_equal(found_at(store.bring(second, with_room)), versions[1])


def test_a_copy_keeps_its_shards_in_memory_and_nothing_of_those_that_are_deleted(
    store: WeightsStore, tmp_path: Path
) -> None:
    notices = publish_versions(store, versions, full=(0, 4))
    copy = VersionCopy(tmp_path / "copy")

    def mapped() -> dict[tuple[int, int], Any]:
        found: dict[tuple[int, int], Any] = vars(vars(copy)["_shards"])["_mapped"]
        return found

    for version in (0, 1, 2):
        store.bring(notices[version], copy)
        files = {(path.stat().st_dev, path.stat().st_ino) for path in copy.directory.glob("*.safetensors")}
        assert mapped().keys() == (files if version else set())
        before = mapped()
    store.bring(notices[3], copy)
    assert mapped().keys() == before.keys()
    assert all(mapped()[file] is data for file, data in before.items())
    store.bring(notices[4], copy)  # overwrites them
    assert mapped().keys() == before.keys()
    assert are_equal(found_at(store.bring(notices[6], copy)), versions[6])
    copy.discard()
    assert mapped() == {}


def deleted_and_mapped(directory: Path) -> list[str]:
    """Files of a directory that are deleted, and that this process still maps: they take room."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if str(directory) in line and line.endswith("(deleted)")]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mappings are read from /proc")
def test_what_is_deleted_takes_no_room_when_room_is_looked_for(store: WeightsStore, tmp_path: Path) -> None:
    notices = publish_versions(store, versions, full=(0, 3))
    found: list[list[str]] = []

    def room(directory: Path) -> int:
        found.append(deleted_and_mapped(directory))
        return 1 << 40

    copy = VersionCopy(tmp_path / "copy", free_bytes=room)
    for version in (0, 1, 2, 3):
        store.bring(notices[version], copy)
    assert found == [[], [], [], []]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mappings are read from /proc")
def test_a_reader_keeps_nothing_of_a_copy_that_another_one_made_anew(
    store: WeightsStore, tmp_path: Path
) -> None:
    notices = publish_versions(store, versions, full=(0, 3))
    one, other = VersionCopy(tmp_path / "copy"), VersionCopy(tmp_path / "copy")
    for version in (0, 1):
        store.bring(notices[version], one)
    other.discard()
    store.bring(notices[3], other)
    assert deleted_and_mapped(tmp_path / "copy")
    assert one.pair == VersionPair(3, notices[3].sha256)
    assert not deleted_and_mapped(tmp_path / "copy")


class _FullDisk(StoreFolder):
    """Whatever is read is written to a disk that takes nothing."""

    def read(self, name: str, take: Callable[[IO[bytes]], Any]) -> Any:
        if not name.endswith(".safetensors"):
            return super().read(name, take)
        raise WeightsError("it cannot be read") from OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_below_a_copy_is_no_fault_of_the_store(store: WeightsStore, tmp_path: Path) -> None:
    notices = publish_versions(store, versions)
    folder = vars(store)["_folder"]
    copy = VersionCopy(tmp_path / "copy")
    with pytest.raises(NoRoomForCopy, match=r"takes no version of weights: .*No space left.*make room there"):
        copy.bring(_FullDisk(folder.filesystem, folder.root), notices[0])


def test_a_shard_of_a_copy_that_was_cut_is_fetched_anew(store: WeightsStore, tmp_path: Path) -> None:
    notices = publish_versions(store, versions)
    copy = VersionCopy(tmp_path / "copy")
    for version in (0, 1):
        store.bring(notices[version], copy)
    shard = max(copy.directory.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    with shard.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(WeightsError, match="has 100 bytes instead of"):
        store.bring(notices[2], copy)
    assert are_equal(found_at(store.bring(notices[2], copy)), versions[2])
