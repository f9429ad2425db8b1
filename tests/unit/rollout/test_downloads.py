"""Downloaded weights go with their worker, or with the next one that downloads."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from support.exports import export_of, numbers
from support.patched_versions import are_equal, found_at, publish_versions, versions_of

from producers.rollout.downloads import Downloads
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.shared_copy import CopyAhead, SharedCopy
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

weights = b"weights"


@asynccontextmanager
async def opened(
    store: WeightsStore, directory: Path, shared: Path | None = None
) -> AsyncIterator[Downloads]:
    """A worker's; with `shared` its free room is that of a disk, whatever memory this machine has left."""
    copy = None if shared is None else SharedCopy(shared, free_bytes=lambda _: 1 << 40)
    downloads = Downloads(store, directory, copy)
    try:
        yield downloads
    finally:
        await downloads.close()


def test_what_a_killed_worker_left_goes_with_the_next_download_and_a_living_ones_stays(
    tmp_path: Path,
) -> None:
    store = WeightsStore(f"memory://{tmp_path.name}")
    notice = store.publish(1, weights)
    left = tmp_path / "killed" / notice.name
    left.parent.mkdir()
    left.write_bytes(weights)

    async def work() -> None:
        async with opened(store, tmp_path / "living") as living:
            await living.fetch(notice)
            assert not left.parent.exists()
            async with opened(store, tmp_path / "next") as following:
                await following.fetch(notice)
                assert following.path.read_bytes() == living.path.read_bytes() == weights
            assert living.path.is_file()

    asyncio.run(work())
    assert [each.name for each in tmp_path.iterdir()] == ["lock"]


def test_all_files_of_a_version_in_shards_go_with_the_next_one(tmp_path: Path) -> None:
    store = WeightsStore(f"memory://{tmp_path.name}")
    first, second = (
        store.publish_tensors(
            version, export_of({"a": numbers(10), "b": numbers(20, seed=version)}), most_bytes=40
        )
        for version in (1, 2)
    )

    async def work() -> None:
        async with opened(store, tmp_path / "downloads" / "w") as downloads:
            for notice in (first, second):
                await downloads.fetch(notice)
                there = {path.name for path in downloads.path.parent.iterdir() if path.suffix}
                assert there == set(store.file_names(notice))
            downloads.discard()
            assert [path for path in (tmp_path / "downloads" / "w").iterdir() if path.suffix] == []

    asyncio.run(work())


def test_shards_of_a_download_that_failed_midway_go_with_the_next_version(tmp_path: Path) -> None:
    store = WeightsStore(f"memory://{tmp_path.name}")
    broken, whole = (
        store.publish_tensors(version, export_of({"a": numbers(10), "b": numbers(20)}), most_bytes=40)
        for version in (1, 2)
    )
    first, second, _ = store.file_names(broken)
    filesystem, root = store.filesystem
    filesystem.pipe_file(f"{root}/{second}", b"cut")

    async def work() -> None:
        directory = tmp_path / "downloads" / "w"
        async with opened(store, directory) as downloads:
            with pytest.raises(WeightsError, match=second):
                await downloads.fetch(broken)
            assert [path.name for path in directory.iterdir() if path.suffix] == [first]
            await downloads.fetch(whole)
            there = {path.name for path in directory.iterdir() if path.suffix}
            assert there == set(store.file_names(whole))

    asyncio.run(work())


def test_weights_on_this_disk_are_read_in_place_and_stay(tmp_path: Path) -> None:
    store = WeightsStore(str(tmp_path / "store"))
    notice = store.publish(1, weights)

    async def work() -> None:
        async with opened(store, tmp_path / "downloads" / "w") as downloads:
            await downloads.fetch(notice)
            assert downloads.path == tmp_path / "store" / notice.name
            downloads.discard()

    asyncio.run(work())
    assert (tmp_path / "store" / notice.name).read_bytes() == weights
    assert not (tmp_path / "downloads").exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    store = WeightsStore(f"memory://{tmp_path.name}")
    notice = store.publish(1, weights)
    (tmp_path / "downloads").touch()

    async def work() -> None:
        async with opened(store, tmp_path / "downloads" / "w") as downloads:
            with pytest.raises(WeightsError, match=r"downloads/w cannot hold downloads"):
                await downloads.fetch(notice)

    asyncio.run(work())


@pytest.mark.parametrize("is_local", [True, False])
def test_a_loaded_version_stays_and_a_patch_makes_the_next_one_of_it(tmp_path: Path, is_local: bool) -> None:
    store = WeightsStore(str(tmp_path / "store") if is_local else f"memory://{tmp_path.name}")
    versions = versions_of(4)
    notices = publish_versions(store, versions)
    directory = tmp_path / "downloads" / "w"

    async def work() -> None:
        async with opened(store, directory) as downloads:
            await downloads.fetch(notices[0])
            downloads.loaded()
            await downloads.fetch(notices[1])
            downloads.loaded()
            for name in store.file_names(notices[0]):
                store.delete(name)
            await downloads.fetch(notices[3])
            assert downloads.path.parent == directory
            assert are_equal(found_at(downloads.path), versions[3])
            downloads.discard()
            with pytest.raises(WeightsError, match=r"not (in|there)"):
                await downloads.fetch(notices[3])

    asyncio.run(work())
    assert [each.name for each in (tmp_path / "downloads").iterdir()] == ["lock"]


def test_a_patch_that_cannot_be_fetched_leaves_what_it_is_applied_to(tmp_path: Path) -> None:
    store = WeightsStore(f"memory://{tmp_path.name}")
    versions = versions_of(3)
    notices = publish_versions(store, versions)
    (name,) = store.file_names(notices[2])[:-1]
    filesystem, root = store.filesystem
    whole = filesystem.cat_file(f"{root}/{name}")
    filesystem.pipe_file(f"{root}/{name}", whole[:-1])

    async def work() -> None:
        async with opened(store, tmp_path / "downloads" / "w") as downloads:
            await downloads.fetch(notices[1])
            downloads.loaded()
            with pytest.raises(WeightsError, match=f"{name} has"):
                await downloads.fetch(notices[2])
            filesystem.pipe_file(f"{root}/{name}", whole)
            for each in store.file_names(notices[0]):
                store.delete(each)
            await downloads.fetch(notices[2])
            assert are_equal(found_at(downloads.path), versions[2])

    asyncio.run(work())


@pytest.mark.parametrize("is_local", [True, False])
def test_workers_of_one_machine_fetch_a_version_once(tmp_path: Path, is_local: bool) -> None:
    store = WeightsStore(str(tmp_path / "store") if is_local else f"memory://{tmp_path.name}")
    versions = versions_of(4)
    notices = publish_versions(store, versions)
    shared = tmp_path / "shared"

    async def work() -> None:
        async with (
            opened(store, tmp_path / "downloads" / "a", shared) as first,
            opened(store, tmp_path / "downloads" / "b", shared) as second,
        ):
            for notice in notices[:2]:
                await first.fetch(notice)
                first.loaded()
            # Only what leads from here to the next version is there for the second worker.
            for notice in notices[:2]:
                for name in store.file_names(notice):
                    store.delete(name)
            await second.fetch(notices[1])
            second.loaded()
            await second.fetch(notices[2])
            await first.fetch(notices[2])
            assert first.path == second.path
            assert first.path.is_relative_to(shared)
            assert are_equal(found_at(first.path), versions[2])
            assert not (tmp_path / "downloads").exists()

    asyncio.run(work())


def test_a_version_that_this_machine_has_passed_is_fetched_alone_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WeightsStore(f"memory://{tmp_path.name}")
    versions = versions_of(4)
    notices = publish_versions(store, versions)
    shared = tmp_path / "shared"

    async def work() -> None:
        async with (
            opened(store, tmp_path / "downloads" / "a", shared) as first,
            opened(store, tmp_path / "downloads" / "b", shared) as second,
        ):
            await first.fetch(notices[3])
            first.loaded()
            with pytest.raises(CopyAhead):
                await second.fetch(notices[2])
            monkeypatch.setattr("producers.rollout.downloads._ahead_seconds", 0.0)
            await second.fetch(notices[2])
            assert second.path.parent == tmp_path / "downloads" / "b"
            assert are_equal(found_at(second.path), versions[2])
            second.loaded()
            await second.fetch(notices[3])
            assert second.path.is_relative_to(shared)
            assert are_equal(found_at(second.path), versions[3])
            # What it had alone is gone: this machine has one copy.
            assert [path.name for path in (tmp_path / "downloads" / "b").iterdir() if path.suffix] == []

    asyncio.run(work())


@pytest.mark.parametrize("why", ["no room", "another user's directory", "no directory"])
def test_without_shared_memory_a_worker_has_a_copy_of_its_own_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    store = WeightsStore(f"memory://{tmp_path.name}")
    versions = versions_of(3)
    notices = publish_versions(store, versions)
    shared = tmp_path / "shared"
    if why == "another user's directory":
        shared.mkdir(mode=0o755)
    if why == "no directory":
        shared.write_text("in the way")
    room = 0 if why == "no room" else 1 << 40

    async def work() -> None:
        copy = SharedCopy(shared, free_bytes=lambda _: room)
        downloads = Downloads(store, tmp_path / "downloads" / "w", copy)
        for notice in notices:
            await downloads.fetch(notice)
            assert downloads.path.parent == tmp_path / "downloads" / "w"
            assert are_equal(found_at(downloads.path), versions[notice.version])
            downloads.loaded()
        await downloads.close()

    asyncio.run(work())
    said = [record for record in caplog.records if "copy of the weights of its own" in record.getMessage()]
    assert len(said) == 1


def test_weights_that_are_disowned_go_from_the_copy_of_the_machine(tmp_path: Path) -> None:
    store = WeightsStore(f"memory://{tmp_path.name}")
    versions = versions_of(2)
    notices = publish_versions(store, versions)

    async def work() -> None:
        async with opened(store, tmp_path / "downloads" / "w", tmp_path / "shared") as downloads:
            await downloads.fetch(notices[1])
            downloads.discard()
            await downloads.fetch(notices[0])
            assert downloads.path.is_relative_to(tmp_path / "shared")
            assert are_equal(found_at(downloads.path), versions[0])

    asyncio.run(work())
