"""Versions as manifests and shards, on a disk and in stores elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from safetensors.torch import load_file
from support.exports import export_of, numbers

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.files import merged_tensors, weights_files
from rollog.kernel.weights import WeightsStore
from schemas import WeightsBase, WeightVersion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.kernel.versions.tensors import TensorSink, TensorSpec

tensors = {
    "large": numbers(300, 1000),
    "b": numbers(30, 30, seed=1),
    "a": numbers(7, seed=2).to(torch.bfloat16),
    "empty": torch.empty(0, 2),
    "steps": torch.tensor(5),
}
most_bytes = 4000


@pytest.fixture(params=["disk", "object store", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> WeightsStore:
    if request.param == "disk":
        return WeightsStore((tmp_path / "store").as_uri())
    if request.param == "s3":
        return WeightsStore(f"s3://{request.getfixturevalue('s3_bucket')}/weights")
    return WeightsStore(f"memory://{uuid4().hex}/weights")


def published(store: WeightsStore, version: int = 3, **others: Any) -> WeightVersion:
    return store.publish_tensors(version, export_of(tensors | others), most_bytes=most_bytes)


def alter(store: WeightsStore, name: str, at: int) -> None:
    filesystem, root = store.filesystem
    data = bytearray(filesystem.cat_file(f"{root}/{name}"))
    data[at] ^= 1
    filesystem.pipe_file(f"{root}/{name}", bytes(data))
    filesystem.invalidate_cache()


def test_a_version_comes_back_tensor_by_tensor(store: WeightsStore, tmp_path: Path) -> None:
    notice = published(store)

    found = merged_tensors(store.fetch(notice, tmp_path / "cache"), load_file)

    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert (notice.format, notice.base) == ("manifest-1", None)
    assert notice.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert notice.stored_bytes == store.num_bytes
    assert store.has(notice)
    store.check(notice)


def test_each_shard_is_a_plain_safetensors_file_of_bounded_size(tmp_path: Path) -> None:
    store = WeightsStore(str(tmp_path))
    files = weights_files(store.fetch(published(store), tmp_path))
    assert len(files) == 3
    for file in files:
        shard = load_file(file)
        assert "large" in shard or sum(tensor.nbytes for tensor in shard.values()) <= most_bytes


def test_no_two_attempts_share_a_name_and_both_have_one_digest(store: WeightsStore, tmp_path: Path) -> None:
    first, second = published(store), published(store)
    assert first.sha256 == second.sha256
    assert {*store.file_names(first)}.isdisjoint(store.file_names(second))
    assert store.orphans([first.name]) == sorted(store.file_names(second))
    for name in store.orphans([first.name]):
        store.delete(name)
    assert sorted(store.file_names(first)) == store.names()
    store.fetch(first, tmp_path / "cache")


def test_a_byte_of_any_file_that_is_altered_is_named(store: WeightsStore, tmp_path: Path) -> None:
    notice = published(store)
    for name in store.file_names(notice):
        for at in (0, 100, -1):
            alter(store, name, at)
            for read in (lambda: store.fetch(notice, tmp_path / uuid4().hex), lambda: store.check(notice)):
                with pytest.raises(WeightsError, match=name):
                    read()
            alter(store, name, at)
    store.check(notice)


@pytest.mark.parametrize("change", ["cut", "longer", "gone"])
def test_a_shard_that_is_cut_longer_or_gone_is_named(
    store: WeightsStore, change: str, tmp_path: Path
) -> None:
    notice = published(store)
    shard = store.file_names(notice)[0]
    filesystem, root = store.filesystem
    data = filesystem.cat_file(f"{root}/{shard}")
    if change == "gone":
        filesystem.rm_file(f"{root}/{shard}")
    else:
        filesystem.pipe_file(f"{root}/{shard}", data[:-1] if change == "cut" else data + b"x")
    filesystem.invalidate_cache()
    with pytest.raises(WeightsError, match="are not in" if change == "gone" else shard):
        store.fetch(notice, tmp_path / "cache")
    assert not store.has(notice)


def test_tensors_that_changed_places_are_seen_though_all_their_bytes_are_there(tmp_path: Path) -> None:
    """Two tensors of one shape: a header that calls each by the other's name would load the wrong ones."""
    store = WeightsStore(str(tmp_path))
    one, two = numbers(8, seed=1), numbers(8, seed=2)
    notice = store.publish_tensors(0, export_of({"aa": one, "bb": two}))
    path = tmp_path / store.file_names(notice)[0]
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"aa"', b'"cc"').replace(b'"bb"', b'"aa"').replace(b'"cc"', b'"bb"'))
    assert torch.equal(load_file(path)["aa"], two)
    with pytest.raises(WeightsError, match="does not begin with the tensors of its manifest"):
        store.fetch(notice, tmp_path)


def test_a_notice_that_does_not_fit_its_manifest_is_refused(store: WeightsStore, tmp_path: Path) -> None:
    notice, other = published(store), published(store, 4, b=numbers(30, 30, seed=9))
    refused = {
        "instead of": replace(notice, manifest_sha256="0" * 64),
        "the notice of version 3 is of": replace(notice, sha256=other.sha256),
        "with 5;": replace(notice, num_bytes=5),
        "which is of another version": replace(notice, version=4),
        "is no name of a manifest": replace(notice, name="../" + notice.name),
        "names of a weights file|no name of a weights file": replace(notice, format="safetensors"),
        "have the format 'manifest-2'; this release": replace(notice, format="manifest-2"),
        "have no base, the notice of version 3 names version 2": replace(
            notice, base=WeightsBase(version=2, sha256="0" * 64)
        ),
    }
    for named, forged in refused.items():
        with pytest.raises(WeightsError, match=named):
            store.fetch(forged, tmp_path / "cache")


def test_a_download_that_is_there_is_used_and_a_broken_one_replaced(tmp_path: Path) -> None:
    store = WeightsStore(f"memory://{uuid4().hex}")
    notice = published(store)
    first, second, third = weights_files(store.fetch(notice, tmp_path))
    kept = first.stat().st_mtime_ns
    second.write_bytes(b"broken")
    assert weights_files(store.fetch(notice, tmp_path)) == [first, second, third]
    assert first.stat().st_mtime_ns == kept
    assert second.stat().st_size > 6


class Failing(Exception):
    """What an engine raises in the middle of its export."""


def test_an_export_that_fails_midway_leaves_nothing(store: WeightsStore) -> None:
    def export(sink: TensorSink) -> None:
        def add(spec: TensorSpec, data: memoryview) -> None:
            if spec.name == "a":
                raise Failing
            sink.add(spec, data)

        export_of(tensors)(_Passing(sink.begin, add))

    with pytest.raises(Failing):
        store.publish_tensors(1, export, most_bytes=most_bytes)
    assert store.names() == store.partial_names() == []


class _Passing:
    def __init__(self, begin: Any, add: Any) -> None:
        self._begin, self._add = begin, add

    def begin(self, table: Sequence[TensorSpec]) -> None:
        self._begin(table)

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        self._add(spec, data)


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the directory should be")
    with pytest.raises(WeightsError, match=r"weights of version 1 could not be written .*has room"):
        published(WeightsStore(str(tmp_path / "store")), 1)


def test_a_full_disk_leaves_no_shard_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) > 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    store = WeightsStore(str(tmp_path))
    with pytest.raises(WeightsError, match="No space left on device"):
        published(store)
    assert list(tmp_path.iterdir()) == []


dying_writer = """
import os, sys
from rollog.kernel.versions.tensors import TensorSpec
from rollog.kernel.weights import WeightsStore
left = [int(sys.argv[2])]
def dying(descriptor):
    left[0] -= 1
    if left[0] < 0:
        os._exit(9)
os.fsync = dying

def export(sink):
    table = [TensorSpec(name, "F32", (100,)) for name in ("a", "b", "c")]
    sink.begin(table)
    for spec in table:
        sink.add(spec, memoryview(bytes(400)))

WeightsStore(sys.argv[1]).publish_tensors(1, export, most_bytes=400)
"""


@pytest.mark.parametrize("num_syncs", [0, 2, 3])
def test_a_writer_that_dies_before_all_is_durable_leaves_no_manifest(tmp_path: Path, num_syncs: int) -> None:
    """Syncs of three shards, then of the manifest: before the last of them it has no name."""
    command = [sys.executable, "-c", dying_writer, str(tmp_path), str(num_syncs)]
    ended = subprocess.run(command, check=False)
    store = WeightsStore(str(tmp_path))
    assert ended.returncode == 9
    assert [name for name in store.names() if name.endswith(".manifest")] == []
    for name in [*store.orphans([]), *store.partial_names()]:
        store.delete(name)
    assert list(tmp_path.iterdir()) == []


def test_shards_are_synced_before_the_manifest_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    sync, rename = os.fsync, os.replace

    def noted_sync(descriptor: int) -> None:
        sync(descriptor)
        happened.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", noted_sync)

    def noted_rename(old: str, new: str) -> None:
        rename(old, new)
        happened.append("renamed")

    monkeypatch.setattr(os, "replace", noted_rename)
    (tmp_path / "store").mkdir()
    store = WeightsStore(str(tmp_path / "store"))
    notice = published(store)
    *shards, manifest, renamed, directory = happened
    assert set(shards) == set(store.file_names(notice)) - {notice.name}
    assert manifest.startswith(".partial-")
    assert (renamed, directory) == ("renamed", "store")


def test_a_fetch_in_place_writes_nothing(tmp_path: Path) -> None:
    store = WeightsStore("file:///store", filesystem=(LocalFileSystem(), str(tmp_path)))
    notice = published(store)
    before = sorted(tmp_path.iterdir())
    assert store.fetch(notice, tmp_path / "never made") == tmp_path / notice.name
    assert sorted(tmp_path.iterdir()) == before
