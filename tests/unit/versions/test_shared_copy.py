"""One copy of a version for the workers of a machine: fetched once, never changed under a reader, never lost."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from support.patched_versions import are_equal, found_at, publish_versions, versions_of
from support.shared_copy_process import distant_store, sharing_process

from rollog.kernel.crash_points import CrashPoint
from rollog.kernel.errors import WeightsError
from rollog.kernel.shared_memory import WorkerPresence, copies_name
from rollog.kernel.versions.copies import NoRoomForCopy
from rollog.kernel.versions.lane import Lane
from rollog.kernel.versions.shared_copy import CopyAhead, CopyBusy, SharedCopy
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rollog.kernel.versions.copies import VersionCopy
    from schemas import WeightVersion

versions = versions_of(5)


@pytest.fixture
def store(tmp_path: Path) -> WeightsStore:
    return WeightsStore(str(tmp_path / "store"))


@pytest.fixture
def notices(store: WeightsStore) -> list[WeightVersion]:
    return publish_versions(store, versions)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


class Worker:
    """A worker's side of the copy, and how often it had to take it to another version."""

    def __init__(self, store: WeightsStore, shared: Path, **changes: float) -> None:
        self.store = distant_store(store.uri)
        self.copy = SharedCopy(shared, free_bytes=lambda _: 1 << 40, **changes)
        self.num_brought = 0

    def bring(self, notice: WeightVersion) -> Path:
        return self.copy.bring(notice, partial(self._bring, notice))

    def _bring(self, notice: WeightVersion, copy: VersionCopy) -> Path:
        self.num_brought += 1
        return self.store.bring(notice, copy)


@contextmanager
def workers(store: WeightsStore, shared: Path, number: int = 2, **changes: float) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        made = [Worker(store, shared, **changes) for _ in range(number)]
        for worker in made:
            stack.callback(worker.copy.close)
        yield made


@contextmanager
def process(
    store: WeightsStore, shared: Path, notices: Sequence[WeightVersion], then: str = "hold"
) -> Iterator[subprocess.Popen[str]]:
    """One that has brought all of these."""
    made = sharing_process(store, shared, notices, then)
    try:
        assert made.stdout is not None
        for _ in notices:
            assert made.stdout.readline()
        yield made
    finally:
        made.kill()
        made.communicate(timeout=30)


def generations(shared: Path) -> list[Path]:
    return sorted(path for path in (shared / copies_name).iterdir() if path.is_dir())


def delete_files(store: WeightsStore, notice: WeightVersion) -> None:
    for name in store.file_names(notice):
        store.delete(name)


def test_each_version_is_brought_by_one_of_many_workers(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    found: list[bool] = []

    def follow(worker: Worker) -> None:
        for notice in notices:
            barrier.wait()
            path = worker.bring(notice)
            found.append(are_equal(found_at(path), versions[notice.version]))
            worker.copy.release()

    with workers(store, shared, 4) as made:
        barrier = threading.Barrier(len(made))
        threads = [threading.Thread(target=follow, args=(worker,)) for worker in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == [True] * 20
        # Another one may come between the two halves of a change of locks, finds the version, and counts.
        assert 5 <= sum(worker.num_brought for worker in made) <= 20
        assert len(generations(shared)) == 1


def test_who_comes_later_reads_nothing_of_the_store(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    with workers(store, shared) as (first, second):
        for notice in notices[:3]:
            first.bring(notice)
        first.copy.release()
        for notice in notices[:3]:
            delete_files(store, notice)
        assert are_equal(found_at(second.bring(notices[2])), versions[2])
        assert second.num_brought == 0
        second.copy.release()
        assert are_equal(found_at(second.bring(notices[3])), versions[3])


def test_a_copy_is_not_changed_under_a_reader_who_lives(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    with process(store, shared, [notices[1]]), workers(store, shared, 1, busy_seconds=0.5) as (other,):
        with pytest.raises(CopyBusy, match="others load another version"):
            other.bring(notices[2])
        assert other.num_brought == 0
        path = other.bring(notices[1])
        assert are_equal(found_at(path), versions[1])


def test_a_writer_waits_for_a_reader(store: WeightsStore, notices: list[WeightVersion], shared: Path) -> None:
    with workers(store, shared) as (reader, writer):
        reader.bring(notices[1])
        timer = threading.Timer(0.3, reader.copy.release)
        timer.start()
        assert are_equal(found_at(writer.bring(notices[2])), versions[2])
        timer.join()


def test_who_waited_for_a_reader_once_waits_anew_for_the_next_one(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    with workers(store, shared, busy_seconds=1.0) as (reader, writer):
        for version in (1, 2):
            reader.bring(notices[version])
            timer = threading.Timer(0.7, reader.copy.release)
            timer.start()
            assert are_equal(found_at(writer.bring(notices[version + 1])), versions[version + 1])
            writer.copy.release()
            timer.join()
            reader.bring(notices[version + 1])
            reader.copy.release()


def test_a_copy_that_is_ahead_is_not_taken_back(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    with workers(store, shared) as (first, second):
        first.bring(notices[3])
        first.copy.release()
        with pytest.raises(CopyAhead, match="at version 3 already, not 2"):
            second.bring(notices[2])
        assert are_equal(found_at(second.bring(notices[3])), versions[3])


@pytest.mark.parametrize("point", [CrashPoint.PATCHES_DECODED, CrashPoint.COPY_BETWEEN_VERSIONS])
def test_what_a_killed_holder_left_is_made_anew_by_the_next(
    store: WeightsStore, notices: list[WeightVersion], shared: Path, tmp_path: Path, point: CrashPoint
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    with workers(store, shared, 1) as (worker,):
        worker.bring(notices[1])
        worker.copy.release()
        (marks / point).touch()
        killed = sharing_process(store, shared, [notices[2]], "end", marks)
        killed.communicate(timeout=60)
        assert killed.returncode == -signal.SIGKILL
        assert are_equal(found_at(worker.bring(notices[2])), versions[2])
        assert len(generations(shared)) == 1


def test_a_stopped_holder_is_left_behind_and_harms_nobody_when_it_goes_on(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    with (
        process(store, shared, [notices[1]]) as reader,
        workers(store, shared, 1, patience_seconds=1.5) as (worker,),
    ):
        reader.send_signal(signal.SIGSTOP)
        (before,) = generations(shared)
        path = worker.bring(notices[2])
        assert are_equal(found_at(path), versions[2])
        assert not before.exists()
        assert path.parent in generations(shared)
        reader.send_signal(signal.SIGCONT)
        reader.communicate(timeout=30)
        assert are_equal(found_at(path), versions[2])
        assert generations(shared) == [path.parent]


def test_one_that_was_stopped_over_a_patch_finds_the_new_copy(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    is_stopped, may_go_on = threading.Event(), threading.Event()

    def stopped(copy: VersionCopy) -> Path:
        is_stopped.set()
        may_go_on.wait(60)
        return store.bring(notices[2], copy)

    with workers(store, shared, 2, patience_seconds=0.5) as (first, second):
        first.bring(notices[1])
        first.copy.release()
        paths: list[Path] = []
        holder = threading.Thread(target=lambda: paths.append(first.copy.bring(notices[2], stopped)))
        generation = vars(first.copy)["_generation"]
        generation.hold = lambda: None  # it does not show that it is alive
        holder.start()
        assert is_stopped.wait(30)
        path = second.bring(notices[2])
        may_go_on.set()
        holder.join(60)
        assert paths == [path]
        assert are_equal(found_at(path), versions[2])
        assert generations(shared) == [path.parent]


def test_what_nobody_here_made_is_read_through_before_it_is_used(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    with workers(store, shared, 1) as (first,):
        path = first.bring(notices[0])
    shard = min(path.parent.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(bytes(data))
    with workers(store, shared, 1) as (second,):
        assert are_equal(found_at(second.bring(notices[0])), versions[0])
        assert second.num_brought == 1


def test_without_room_nothing_is_left_and_it_is_said(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    with workers(store, shared, 1) as (first,):
        first.bring(notices[0])
    copy = SharedCopy(shared, free_bytes=lambda _: 0)
    with pytest.raises(NoRoomForCopy, match="room for 0 bytes"):
        copy.bring(notices[1], partial(distant_store(store.uri).bring, notices[1]))
    copy.close()
    assert [path.name for path in generations(shared)[0].iterdir()] == ["lock"]


def test_a_directory_that_others_may_enter_is_not_used(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    shared.mkdir(mode=0o755)
    with (
        workers(store, shared, 1) as (worker,),
        pytest.raises(PermissionError, match="not this user's alone"),
    ):
        worker.bring(notices[0])


def test_one_who_waits_can_be_stopped(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    with process(store, shared, [notices[1]]), workers(store, shared, 1) as (other,):
        timer = threading.Timer(0.3, other.copy.stop)
        timer.start()
        with pytest.raises(WeightsError, match="this worker ends"):
            other.bring(notices[2])


def test_the_last_worker_removes_the_copy(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    with WorkerPresence(shared):
        with WorkerPresence(shared), workers(store, shared, 1) as (worker,):
            worker.bring(notices[0])
        Lane(shared).clear()
        assert len(generations(shared)) == 1
    assert not shared.exists()


def test_a_copy_of_a_killed_worker_goes_with_the_trainer(
    store: WeightsStore, notices: list[WeightVersion], shared: Path
) -> None:
    presence = WorkerPresence(shared).__enter__()
    with workers(store, shared, 1) as (worker,):
        worker.bring(notices[0])
    os.close(vars(presence)["_lock"])  # as the system does when the process dies
    assert len(generations(shared)) == 1
    Lane(shared).clear()
    assert not (shared / copies_name).exists()


def test_a_copy_of_a_killed_worker_goes_with_the_next_worker_of_any_run(
    store: WeightsStore, notices: list[WeightVersion], tmp_path: Path
) -> None:
    dead, living, new = (tmp_path / f"rollog-{os.geteuid()}-{name * 16}" for name in ("1", "2", "3"))
    for shared in (dead, living):
        presence = WorkerPresence(shared).__enter__()
        with workers(store, shared, 1) as (worker,):
            worker.bring(notices[0])
        if shared == dead:
            os.close(vars(presence)["_lock"])  # as the system does when the process dies
    with WorkerPresence(new):
        assert not (dead / copies_name).exists()
        assert len(generations(living)) == 1
    presence.__exit__()
