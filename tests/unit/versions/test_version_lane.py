"""Files of versions in shared memory: read when they are as noticed, and harmless whatever becomes of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from support.counted_store import CountedFiles
from support.exports import export_of
from support.patched_versions import are_equal, found_at, patch_writer, publish_versions, versions_of

from rollog.kernel.errors import EngineError
from rollog.kernel.shared_memory import WorkerPresence, free_memory_bytes, has_workers, shared_directory
from rollog.kernel.versions.chains import cumulative_every
from rollog.kernel.versions.copies import VersionCopy
from rollog.kernel.versions.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rollog.kernel.versions.tensors import TensorSink
    from schemas import WeightVersion

versions = versions_of(5)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """The directory of a run on a machine where one of its workers lives."""
    with WorkerPresence(tmp_path / "shared"):
        yield tmp_path / "shared"


@pytest.fixture
def files() -> CountedFiles:
    return CountedFiles()


def in_lane(shared: Path) -> list[str]:
    directory = shared / "lane"
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def published(files: CountedFiles, lane: Lane, num: int, full: tuple[int, ...] = (0,)) -> list[WeightVersion]:
    return publish_versions(files.seen_by(lane), versions[:num], full)


def test_a_worker_of_this_machine_reads_a_full_version_and_a_patch_without_the_store(
    files: CountedFiles, shared: Path, tmp_path: Path
) -> None:
    copy, store = VersionCopy(tmp_path / "copy"), files.seen_by(Lane(shared))
    (first,) = published(files, Lane(shared), 1)
    assert are_equal(found_at(store.bring(first, copy)), versions[0])

    second = store.publish_patch(1, first, patch_writer(versions[0], versions[1]))
    assert are_equal(found_at(store.bring(second, copy)), versions[1])

    assert files.read == []
    assert files.seen_by().names()


def pipe_at(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.unlink(),
        lambda path: (path.rename(path.with_suffix(".moved")), path.symlink_to(path.with_suffix(".moved"))),
        pipe_at,
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["cut", "altered", "longer", "gone", "a link", "a pipe", "a directory"],
)
@pytest.mark.parametrize("version", [0, 1], ids=["full", "patch"])
def test_a_file_that_is_not_as_it_was_written_is_read_in_the_store(
    files: CountedFiles, shared: Path, tmp_path: Path, harm: Callable[[Path], object], version: int
) -> None:
    notices = published(files, Lane(shared), version + 1)
    copy = VersionCopy(tmp_path / "copy")
    if version:
        files.seen_by().bring(notices[0], copy)
    names = [
        name for name in files.seen_by().file_names(notices[version]) if not name.endswith("-01.safetensors")
    ]
    assert {*names} <= {*in_lane(shared)}
    for name in names:
        harm(shared / "lane" / name)
    files.forget()

    path = files.seen_by(Lane(shared)).bring(notices[version], copy)

    assert are_equal(found_at(path), versions[version])
    assert sorted(files.read) == sorted(names)


def test_nothing_is_written_where_no_worker_lives(files: CountedFiles, tmp_path: Path) -> None:
    with WorkerPresence(tmp_path / "shared"):
        assert has_workers(tmp_path / "shared")
    assert not has_workers(tmp_path / "shared")
    published(files, Lane(tmp_path / "shared"), 2)
    assert list(tmp_path.iterdir()) == []


def test_with_too_little_memory_a_version_is_in_the_store_alone_and_that_is_said_once(
    files: CountedFiles, shared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lane = Lane(shared, free_bytes=lambda _: 3000)
    notices = published(files, lane, 2, full=(0, 1))
    assert in_lane(shared) == []
    assert caplog.messages.count("versions are not in shared memory, workers read them in the store") == 1
    path = files.seen_by(Lane(shared)).bring(notices[1], VersionCopy(tmp_path / "copy"))
    assert are_equal(found_at(path), versions[1])


def test_the_newest_version_is_there_and_the_patches_since_the_last_full_form(
    files: CountedFiles, shared: Path
) -> None:
    store, lane = files.seen_by(), Lane(shared)
    notices = published(files, lane, 5, full=(0, 3))
    assert in_lane(shared) == sorted(store.file_names(notices[4]))

    published_again = published(files, lane, 3)
    of_patches = [name for notice in published_again[1:] for name in store.file_names(notice)]
    # The patch of the run before stays until the next full form, which was the first of these.
    assert in_lane(shared) == sorted(of_patches)


def test_patches_from_before_the_last_cumulative_one_go(files: CountedFiles, shared: Path) -> None:
    store, lane = files.seen_by(), Lane(shared)
    notices = publish_versions(files.seen_by(lane), versions_of(cumulative_every + 4))
    kept = [name for notice in notices[3:] for name in store.file_names(notice)]
    assert in_lane(shared) == sorted(kept)


def test_what_is_given_up_while_it_is_written_leaves_nothing(files: CountedFiles, shared: Path) -> None:
    def export(sink: TensorSink) -> None:
        export_of(versions[0])(_Failing(sink))

    with pytest.raises(EngineError):
        files.seen_by(Lane(shared)).publish_tensors(0, export, most_bytes=4000)
    assert in_lane(shared) == []


class _Failing:
    def __init__(self, sink: TensorSink) -> None:
        self._sink = sink
        self._left = 4
        self.begin = sink.begin

    def add(self, *tensor: object) -> None:
        self._left -= 1
        if not self._left:
            raise EngineError("the engine ended")
        self._sink.add(*tensor)  # type: ignore[arg-type]


def test_the_next_trainer_removes_what_a_killed_one_left(files: CountedFiles, shared: Path) -> None:
    published(files, Lane(shared), 1)
    (shared / "lane" / "anything").touch()
    Lane(shared).clear()
    assert in_lane(shared) == []
    assert has_workers(shared)


@pytest.mark.parametrize("place", ["shared", "lane"])
def test_a_directory_that_others_may_enter_is_used_by_nobody(
    files: CountedFiles, shared: Path, tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    (notice,) = published(files, Lane(shared), 1)
    (shared if place == "shared" else shared / "lane").chmod(0o755)
    files.forget()

    files.seen_by(Lane(shared)).bring(notice, VersionCopy(tmp_path / "copy"))
    (second,) = published(files, Lane(shared), 1)

    if place == "lane":
        assert files.read
    assert not {*files.seen_by().file_names(second)} & {*in_lane(shared)}
    assert "is not this user's alone (mode 0755)" in str([record.__dict__ for record in caplog.records])


def test_a_link_in_place_of_the_directory_is_not_followed(
    files: CountedFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "shared").symlink_to(elsewhere)
    with WorkerPresence(tmp_path / "shared"):
        published(files, Lane(tmp_path / "shared"), 1)
    assert list(elsewhere.iterdir()) == []
    assert "shared memory is not used" in caplog.messages


def test_a_name_that_leads_elsewhere_is_refused(shared: Path) -> None:
    for name in ("../workers", "lane", "", "/etc/passwd", "v000001-0123456789abcdef.manifest/../x"):
        with pytest.raises(PermissionError):
            Lane(shared).open(name)


def test_two_runs_on_a_machine_do_not_meet(tmp_path: Path) -> None:
    place = str(tmp_path)
    runs = {
        shared_directory(place, *named)
        for named in [("a", "b", "c"), ("ab", "", "c"), ("a", "b", "d"), ("x", "b", "c")]
    }
    assert len(runs) == 4
    assert {run.parent for run in runs if run is not None} == {tmp_path}
    assert shared_directory("off", "a") is None


def test_memory_that_the_machine_or_the_container_needs_is_not_taken(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "group"
    group.mkdir()

    def free() -> int:
        return free_memory_bytes(tmp_path, meminfo=meminfo, control_group=group)

    meminfo.write_text("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 300 kB\n")
    assert free() == 200 * 1024
    (group / "memory.max").write_text("max\n")
    assert free() == 200 * 1024
    (group / "memory.max").write_text("100000\n")
    (group / "memory.current").write_text("70000\n")
    (group / "memory.stat").write_text("anon 50000\ninactive_file 5000\nactive_file 6000\n")
    assert free() == 100000 - 59000 - 10000
    meminfo.write_text("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 30 kB\n")
    assert free() == 0
