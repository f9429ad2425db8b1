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
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

weights = b"weights"


@asynccontextmanager
async def opened(store: WeightsStore, directory: Path) -> AsyncIterator[Downloads]:
    downloads = Downloads(store, directory)
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
