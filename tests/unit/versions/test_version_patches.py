"""Versions that are stored as what changed: rebuilt bit by bit from any full form, refused where anything is off."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import numpy as np
import pytest
import torch
from support.exports import export_of
from support.patched_tensors import a_block
from support.patched_versions import (
    are_equal,
    first_tensors,
    found_at,
    next_tensors,
    patch_writer,
    publish_versions,
    versions_of,
)

from rollog.kernel.errors import EngineError, WeightsError
from rollog.kernel.versions.blocks import segment_elements
from rollog.kernel.versions.copies import VersionCopy
from rollog.kernel.versions.identity import leaf_bytes
from rollog.kernel.versions.patches import TensorPatch
from rollog.kernel.versions.tensors import type_bytes
from rollog.kernel.weights import WeightsStore
from schemas import WeightsBase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollog.kernel.versions.patch_shards import PatchSink
    from rollog.kernel.versions.tensors import TensorSpec

    Edit = Callable[[dict[str, Any]], object]

versions = versions_of(7)


@pytest.fixture(params=["disk", "object store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> WeightsStore:
    if request.param == "disk":
        return WeightsStore((tmp_path / "store").as_uri())
    return WeightsStore(f"memory://{uuid4().hex}/weights")


def alter(store: WeightsStore, name: str, at: int) -> None:
    filesystem, root = store.filesystem
    data = bytearray(filesystem.cat_file(f"{root}/{name}"))
    data[at] ^= 1
    filesystem.pipe_file(f"{root}/{name}", bytes(data))
    filesystem.invalidate_cache()


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.exists() else set()


@pytest.mark.parametrize("full", [(0,), (0, 3), (0, 1, 6)])
def test_every_version_is_rebuilt_by_one_who_has_nothing_and_by_one_who_follows(
    store: WeightsStore, full: Sequence[int], tmp_path: Path
) -> None:
    notices = publish_versions(store, versions, full)
    follower = VersionCopy(tmp_path / "follower")
    for number, (tensors, notice) in enumerate(zip(versions, notices, strict=True)):
        assert (notice.base is None) == (number in full)
        assert store.has(notice)
        assert are_equal(found_at(store.bring(notice, follower)), tensors)
        assert are_equal(found_at(store.fetch(notice, tmp_path / f"new-{number}")), tensors)
        store.check(notice)


@pytest.mark.parametrize("jump", [2, 3, 5])
def test_who_passes_versions_over_is_patched_through_them(
    store: WeightsStore, jump: int, tmp_path: Path
) -> None:
    notices = publish_versions(store, versions, full=(0, 4))
    copy = VersionCopy(tmp_path / "copy")
    for number in range(0, 7, jump):
        assert are_equal(found_at(store.bring(notices[number], copy)), versions[number])
    assert are_equal(found_at(store.bring(notices[2], copy)), versions[2])


def test_a_patch_has_few_bytes_and_says_how_many(store: WeightsStore) -> None:
    first, second = publish_versions(store, versions[:2])
    names = store.file_names(second)
    filesystem, root = store.filesystem
    assert [name.rsplit(".")[-1] for name in names] == ["patch", "manifest"]
    assert second.stored_bytes == sum(filesystem.size(f"{root}/{name}") for name in names)
    assert second.stored_bytes < 0.05 * first.stored_bytes
    assert (second.num_bytes, second.base) == (
        first.num_bytes,
        WeightsBase(version=0, sha256=first.sha256, name=first.name),
    )


def test_patch_and_full_form_have_one_digest(store: WeightsStore) -> None:
    _, second = publish_versions(store, versions[:2])
    assert store.publish_tensors(1, export_of(versions[1])).sha256 == second.sha256


def test_a_copy_goes_on_without_the_full_form_and_keeps_one_version(tmp_path: Path) -> None:
    store = WeightsStore(f"memory://{uuid4().hex}")
    notices = publish_versions(store, versions)
    copy = VersionCopy(tmp_path / "copy")
    store.bring(notices[0], copy)
    for name in store.file_names(notices[0])[:-1]:
        store.delete(name)

    for number in (1, 2, 5):
        path = store.bring(notices[number], copy)
        assert are_equal(found_at(path), versions[number])
        assert sorted(each.suffix for each in path.parent.iterdir()) == [
            ".manifest",
            *[".safetensors"] * len(store.file_names(notices[0])[:-1]),
        ]
    with pytest.raises(WeightsError, match="are not in"):
        store.fetch(notices[5], tmp_path / "joiner")
    assert not store.has(notices[5])


def test_a_full_version_on_this_disk_is_read_in_place_and_never_patched(tmp_path: Path) -> None:
    store = WeightsStore(str(tmp_path / "store"))
    notices = publish_versions(store, versions[:3])
    before = {path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()}
    copy = VersionCopy(tmp_path / "copy")
    assert store.bring(notices[0], copy) == tmp_path / "store" / notices[0].name
    assert not (tmp_path / "copy").exists()
    for notice in notices[1:]:
        assert store.bring(notice, copy).parent == tmp_path / "copy"
    assert store.bring(notices[0], copy) == tmp_path / "store" / notices[0].name
    assert names_in(tmp_path / "copy") == set()
    assert {path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()} == before


def test_an_altered_byte_of_any_file_of_a_chain_is_named_and_the_copy_stays(
    store: WeightsStore, tmp_path: Path
) -> None:
    notices = publish_versions(store, versions[:4])
    copy = VersionCopy(tmp_path / "copy")
    store.bring(notices[1], copy)
    for notice in notices[2:]:
        for name in store.file_names(notice):
            for at in (0, 30, -1):
                alter(store, name, at)
                with pytest.raises(WeightsError, match=name):
                    store.fetch(notices[3], tmp_path / uuid4().hex)
                with pytest.raises(WeightsError, match=name):
                    store.bring(notices[3], copy)
                assert are_equal(found_at(copy.path), versions[1])
                alter(store, name, at)
    assert are_equal(found_at(store.bring(notices[3], copy)), versions[3])


def test_a_base_that_is_deleted_while_a_patch_of_it_is_fetched_is_named(
    store: WeightsStore, tmp_path: Path
) -> None:
    notices = publish_versions(store, versions[:4])
    store.delete(notices[1].name)
    with pytest.raises(WeightsError, match=rf"{notices[3].name}.* changes since {notices[1].name}, which is"):
        store.fetch(notices[3], tmp_path / "new")
    assert not store.has(notices[3])
    assert store.has(notices[0])
    assert names_in(tmp_path / "new") == set()


def test_a_copy_that_was_altered_is_found_by_the_leaves_and_made_anew(
    store: WeightsStore, tmp_path: Path
) -> None:
    notices = publish_versions(store, versions[:4])
    copy = VersionCopy(tmp_path / "copy")
    path = store.bring(notices[1], copy)
    shard = next(each for each in path.parent.iterdir() if each.stat().st_size > 2_000_000)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)

    with pytest.raises(WeightsError, match="tensor 'large' has after its patches a leaf"):
        store.bring(notices[2], copy)
    assert copy.pair is None
    assert {each.suffix for each in path.parent.iterdir()} == {".safetensors"}
    assert are_equal(found_at(store.bring(notices[2], copy)), versions[2])


def test_a_copy_that_is_asked_for_again_is_looked_through(tmp_path: Path) -> None:
    store = WeightsStore(str(tmp_path / "store"))
    notices = publish_versions(store, versions[:2])
    copy = VersionCopy(tmp_path / "copy")
    path = store.bring(notices[1], copy)
    unchanged = path.stat().st_mtime_ns
    assert store.bring(notices[1], copy).stat().st_mtime_ns == unchanged
    next(path.parent.glob("*-00.safetensors")).write_bytes(b"broken")
    assert are_equal(found_at(store.bring(notices[1], copy)), versions[1])


def test_what_was_left_between_two_versions_is_no_version(tmp_path: Path) -> None:
    store = WeightsStore(f"memory://{uuid4().hex}")
    notices = publish_versions(store, versions[:2])
    left = store.bring(notices[0], VersionCopy(tmp_path / "copy"))
    for shard in left.parent.glob("*.safetensors"):
        with shard.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"?")
    left.unlink()

    assert are_equal(found_at(store.bring(notices[1], VersionCopy(tmp_path / "copy"))), versions[1])


def test_a_patch_of_another_base_is_refused(store: WeightsStore, tmp_path: Path) -> None:
    """Its base has the right version, digest and manifest; only the changes are of something else."""
    (first,) = publish_versions(store, versions[:1])
    other = first_tensors(seed=5)
    forged = store.publish_patch(1, first, patch_writer(other, next_tensors(other, 1)))
    with pytest.raises(WeightsError, match=r"tensor '\w+' has after its patches"):
        store.fetch(forged, tmp_path / "new")
    assert names_in(tmp_path / "new") == set()


def test_a_base_with_other_tensors_is_refused(store: WeightsStore, tmp_path: Path) -> None:
    tensors = {"large": versions[0]["large"], "more": torch.zeros(3, dtype=torch.bfloat16)}
    (first,) = publish_versions(store, [tensors])
    forged = store.publish_patch(1, first, patch_writer(versions[0], versions[1]))
    with pytest.raises(WeightsError, match=f"{first.name} have other tensors than {forged.name}"):
        store.fetch(forged, tmp_path / "new")


def test_a_patch_with_other_tensors_than_those_of_a_copy_is_refused(tmp_path: Path) -> None:
    """Whoever has the base reads no manifest of it."""
    store = WeightsStore(f"memory://{uuid4().hex}")
    tensors = {"large": versions[0]["large"], "more": torch.zeros(3, dtype=torch.bfloat16)}
    (first,) = publish_versions(store, [tensors])
    forged = store.publish_patch(1, first, patch_writer(versions[0], versions[1]))
    copy = VersionCopy(tmp_path / "copy")
    path = store.bring(first, copy)
    with pytest.raises(WeightsError, match=r"the patch of version 0 .* has other tensors than that version"):
        store.bring(forged, copy)
    assert copy.path == path
    assert are_equal(found_at(path), tensors)


def test_a_notice_that_tells_of_another_base_is_refused(store: WeightsStore, tmp_path: Path) -> None:
    first, second, third = publish_versions(store, versions[:3])
    for base, named in (
        (None, "the notice of version 2 names none"),
        (WeightsBase(version=0, sha256=first.sha256), "names version 0"),
        (WeightsBase(version=1, sha256="0" * 64), "names version 1"),
        (WeightsBase(version=2, sha256=second.sha256), "which is not lower"),
    ):
        with pytest.raises(WeightsError, match=named):
            store.bring(replace(third, base=base), VersionCopy(tmp_path / "copy"))


def with_block(tensor: str, block: bytes) -> Callable[[PatchSink], None]:
    """The patch from version 0 to 1 with another block for one tensor, and true digests of all files."""

    def write(sink: PatchSink) -> None:
        class Forging:
            @staticmethod
            def add(spec: TensorSpec, data: memoryview, encode: Callable[[], TensorPatch]) -> None:
                forged = TensorPatch("changed", block)
                sink.add(spec, data, (lambda: forged) if spec.name == tensor else encode)

        patch_writer(versions[0], versions[1])(cast("PatchSink", Forging))

    return write


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (a_block(b"\x03", b"\x02\x00", num_elements=1999), "of 1999 elements"),
        (a_block(b"\x03", b"\x02\x00", num_elements=2000, behind=b"x"), "follow its last segment"),
    ],
    ids=["another size", "too long"],
)
def test_a_patch_whose_headers_are_wrong_leaves_a_copy_as_it_was(
    tmp_path: Path, block: bytes, reason: str
) -> None:
    store = WeightsStore(f"memory://{uuid4().hex}")
    (first,) = publish_versions(store, versions[:1])
    forged = store.publish_patch(1, first, with_block("half", block))
    copy = VersionCopy(tmp_path / "copy")
    path = store.bring(first, copy)
    with pytest.raises(WeightsError, match=f"the patch of tensor 'half' is refused: .*{reason}"):
        store.bring(forged, copy)
    assert copy.path == path
    assert are_equal(found_at(path), versions[0])


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (
            a_block(b"\x03\xff\xff\xff\xff\xff\xff\xff\xff\xfe", b"\x02\x02\0\0", num_elements=2000),
            "a change at",
        ),
        (a_block(b"\x03", b"\x00\x00", num_elements=2000), "the difference 0"),
    ],
    ids=["a position beyond the end", "no difference"],
)
def test_a_patch_that_is_wrong_inside_leaves_no_version_and_the_next_one_comes(
    store: WeightsStore, tmp_path: Path, block: bytes, reason: str
) -> None:
    notices = publish_versions(store, versions[:3])
    forged = store.publish_patch(1, notices[0], with_block("half", block))
    copy = VersionCopy(tmp_path / "copy")
    store.bring(notices[0], copy)
    for _ in range(2):
        with pytest.raises(WeightsError, match=f"the patch of tensor 'half' is refused: .*{reason}"):
            store.bring(forged, copy)
        assert copy.pair is None
        assert {each.suffix for each in copy.directory.iterdir()} == {".safetensors"}
    assert are_equal(found_at(store.bring(notices[2], copy)), versions[2])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mappings are read from /proc")
def test_who_keeps_the_error_of_a_patch_keeps_nothing_of_the_copy_in_memory(tmp_path: Path) -> None:
    store = WeightsStore(f"memory://{uuid4().hex}")
    notices = publish_versions(store, versions[:2])
    forged = store.publish_patch(
        1, notices[0], with_block("half", a_block(b"\x03", b"\0\0", num_elements=2000))
    )
    copy = VersionCopy(tmp_path / "copy")
    store.bring(notices[0], copy)
    with pytest.raises(WeightsError) as kept:
        store.bring(forged, copy)
    copy.discard()
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if str(tmp_path / "copy") in line] == []
    del kept


def test_a_manifest_of_the_base_with_another_digest_is_refused(store: WeightsStore, tmp_path: Path) -> None:
    first, other = publish_versions(store, versions[:1])[0], publish_versions(store, versions[1:2])[0]
    lying = replace(first, name=other.name, manifest_sha256=other.manifest_sha256)
    forged = store.publish_patch(1, lying, patch_writer(versions[0], versions[1]))
    with pytest.raises(WeightsError, match="is not made for them"):
        store.fetch(forged, tmp_path / "new")


def test_a_nan_is_refused_and_nothing_is_left(store: WeightsStore) -> None:
    (first,) = publish_versions(store, versions[:1])
    names = store.names()
    broken = versions[1] | {"half": versions[1]["half"] * float("nan")}
    with pytest.raises(EngineError, match="tensor half has a NaN"):
        store.publish_patch(1, first, patch_writer(versions[0], broken))
    assert store.names() == names


def test_a_writer_that_stops_leaves_nothing(store: WeightsStore) -> None:
    (first,) = publish_versions(store, versions[:1])
    names, write = store.names(), patch_writer(versions[0], versions[1])

    def stops(sink: PatchSink) -> None:
        write(sink)
        assert 0 < sink.stored_bytes < first.num_bytes
        raise KeyError("enough")

    with pytest.raises(KeyError):
        store.publish_patch(1, first, stops)
    assert store.names() == names


def test_files_of_patches_belong_to_their_notices(store: WeightsStore) -> None:
    notices = publish_versions(store, versions[:3])
    names = [notice.name for notice in notices]
    assert store.belonging(names) == store.names()
    assert store.orphans(names[:2]) == sorted(store.file_names(notices[2]))


def test_a_patch_is_cut_into_shards_of_bounded_size(tmp_path: Path) -> None:
    store, tensors = (
        WeightsStore(str(tmp_path / "store")),
        {f"t{number}": versions[0]["half"] for number in range(9)},
    )
    moved = {name: tensor + (number % 3) for number, (name, tensor) in enumerate(tensors.items())}
    (first,) = publish_versions(store, [tensors])
    second = store.publish_patch(1, first, patch_writer(tensors, moved), most_bytes=10_000)

    shards = store.file_names(second)[:-1]
    # Six tensors of 4,000 bytes changed wholly.
    assert [(tmp_path / "store" / name).stat().st_size for name in shards] == [8000, 8000, 8000]
    assert are_equal(found_at(store.fetch(second, tmp_path)), moved)


def test_stored_files_come_as_they_are(store: WeightsStore, tmp_path: Path) -> None:
    notices = publish_versions(store, versions[:2])
    filesystem, root = store.filesystem
    for notice in notices:
        files = store.stored_files(notice, tmp_path / "files")
        assert [path.name for path in files] == store.file_names(notice)
        assert [path.read_bytes() for path in files] == [
            filesystem.cat_file(f"{root}/{path.name}") for path in files
        ]


def test_a_chain_without_end_is_refused(tmp_path: Path) -> None:
    store = WeightsStore(str(tmp_path / "store"))
    tensors = {"one": torch.zeros(3, dtype=torch.bfloat16)}
    notices = publish_versions(store, [tensors] * 258)
    store.fetch(notices[255], tmp_path / "new")
    with pytest.raises(WeightsError, match="more than 255 patches after a full form"):
        store.fetch(notices[257], tmp_path / "new")


def test_what_comes_back_over_two_patches_is_not_written(store: WeightsStore, tmp_path: Path) -> None:
    there = torch.ones(3000, dtype=torch.bfloat16)
    gone = there.clone()
    gone[5] = 2.0
    rest = torch.arange(4000, dtype=torch.float32).to(torch.bfloat16)
    tensors = [{"norm": each, "rest": rest} for each in (there, gone, there)]
    tensors[2]["rest"] = rest.clone()
    tensors[2]["rest"][7] = -1.0
    notices = publish_versions(store, tensors)
    copy = VersionCopy(tmp_path / "copy")
    store.bring(notices[0], copy)
    assert are_equal(found_at(store.bring(notices[2], copy)), tensors[2])


def test_a_leaf_has_whole_segments_so_that_no_two_threads_write_to_one() -> None:
    assert {leaf_bytes % (size * segment_elements) for size in type_bytes.values()} == {0}


@pytest.mark.parametrize("last_is_dense", [False, True], ids=["changed", "dense"])
def test_a_tensor_that_threads_share_is_taken_through_several_patches(
    store: WeightsStore, tmp_path: Path, last_is_dense: bool
) -> None:
    # Bytes have most elements: 18 segments and a rest, in two leaves.
    draw = np.random.default_rng(0)
    first = draw.integers(0, 256, (18 << 20) + 1000, dtype=np.uint8)
    second, places = first.copy(), draw.integers(0, first.size, 100_000)
    second[places] += 1
    second[[0, (1 << 20) - 1, 1 << 20, (16 << 20) - 1, 16 << 20, -1]] += 1
    third = draw.integers(0, 256, first.size, dtype=np.uint8) if last_is_dense else second.copy()
    third[places[::2]] += 1
    fourth = third.copy()
    fourth[places[::3]] += 1
    versions = [{"bytes": torch.from_numpy(each)} for each in (first, second, third, fourth)]
    notices = publish_versions(store, versions, most_bytes=1 << 30)
    copy = VersionCopy(tmp_path / "copy")
    for version in (0, 1, 3):
        assert are_equal(found_at(store.bring(notices[version], copy)), versions[version])
