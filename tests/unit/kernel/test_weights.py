"""The weights store over a local disk and over an object store."""

from __future__ import annotations

import errno
import hashlib
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from fsspec.implementations.local import LocalFileSystem
from safetensors.torch import save
from support.exports import export_of, numbers

from rollog.kernel.errors import ConfigError, WeightsError
from rollog.kernel.weights import WeightsStore
from schemas.weights import WeightVersion

if TYPE_CHECKING:
    from pathlib import Path

content = b"weights of a very small model" * 1000


@pytest.fixture(params=["disk", "object store", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> WeightsStore:
    if request.param == "disk":
        return WeightsStore((tmp_path / "store").as_uri())
    if request.param == "s3":
        return WeightsStore(f"s3://{request.getfixturevalue('s3_bucket')}/weights")
    return WeightsStore(f"memory://{uuid4().hex}/weights")


def path_in(store: WeightsStore, name: str) -> str:
    return f"{store._root}/{name}"


def overwrite(store: WeightsStore, name: str, data: bytes) -> None:
    store._fs.pipe_file(path_in(store, name), data)


def a_notice(name: str, *, version: int = 1) -> WeightVersion:
    return WeightVersion(
        version=version, sha256=hashlib.sha256(content).hexdigest(), name=name, num_bytes=len(content)
    )


def test_a_published_version_comes_back_byte_for_byte(store: WeightsStore, tmp_path: Path) -> None:
    notice = store.publish(3, content)

    assert notice == WeightVersion(
        version=3,
        sha256=hashlib.sha256(content).hexdigest(),
        name=f"v000003-{hashlib.sha256(content).hexdigest()[:16]}.safetensors",
        num_bytes=len(content),
    )
    assert store.fetch(notice, tmp_path / "cache").read_bytes() == content


def test_a_version_is_published_as_one_file_while_its_tensors_are_gathered(
    store: WeightsStore, tmp_path: Path
) -> None:
    tensors = {"b": numbers(3, 5), "a": numbers(7, seed=1)}

    notice = store.publish(0, export_of(tensors))

    assert store.fetch(notice, tmp_path / "cache").read_bytes() == save(tensors, metadata={"format": "pt"})
    assert store.publish(0, export_of(tensors)) == notice


def test_publishing_the_same_bytes_again_changes_nothing(store: WeightsStore) -> None:
    first = store.publish(1, content)

    assert store.publish(1, content) == first
    assert store.names() == [first.name]


def test_two_files_may_claim_one_version_and_only_the_named_one_is_no_orphan(store: WeightsStore) -> None:
    committed = store.publish(1, content)
    abandoned = store.publish(1, content + b"!")

    assert store.orphans([committed.name]) == [abandoned.name]


def test_publishing_over_altered_bytes_is_refused(store: WeightsStore) -> None:
    notice = store.publish(1, content)
    overwrite(store, notice.name, b"x" + content[1:])

    with pytest.raises(WeightsError, match="altered"):
        store.publish(1, content)


def test_a_truncated_file_is_not_served(store: WeightsStore, tmp_path: Path) -> None:
    notice = store.publish(1, content)
    overwrite(store, notice.name, content[:-1])

    with pytest.raises(WeightsError, match=f"{len(content) - 1} bytes instead of {len(content)}"):
        store.fetch(notice, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*"))


def test_one_altered_byte_is_noticed(store: WeightsStore, tmp_path: Path) -> None:
    notice = store.publish(1, content)
    overwrite(store, notice.name, content[:-1] + b"?")

    with pytest.raises(WeightsError, match="sha256"):
        store.fetch(notice, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob(".*"))


def test_a_missing_version_names_the_store_and_the_file(store: WeightsStore, tmp_path: Path) -> None:
    notice = store.publish(1, content)
    store.delete(notice.name)

    with pytest.raises(WeightsError, match=notice.name):
        store.fetch(notice, tmp_path / "cache")


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/passwd",
        "v000001-0123456789abcdef.safetensors/../../x",
        "v1-0123456789abcdef.safetensors",
        "v000001-0123456789ABCDEF.safetensors",
        "v000001-0123456789abcdef.safetensors\n",
        "v000001-0123456789abcdef.pt",
        "",
    ],
)
def test_a_name_that_is_not_plain_is_refused(store: WeightsStore, tmp_path: Path, name: str) -> None:
    with pytest.raises(WeightsError, match="no name of a weights file"):
        store.fetch(a_notice(name), tmp_path)
    with pytest.raises(WeightsError, match="no name of a weights file"):
        store.delete(name)


def test_a_notice_whose_name_belongs_to_another_version_is_refused(
    store: WeightsStore, tmp_path: Path
) -> None:
    notice = store.publish(1, content)

    with pytest.raises(WeightsError, match="refused"):
        store.fetch(replace(notice, version=2), tmp_path)


def test_names_are_listed_by_version_and_foreign_files_are_not(store: WeightsStore) -> None:
    later, earlier = store.publish(12, content), store.publish(2, content)
    overwrite(store, "README", b"not ours")

    assert store.names() == [earlier.name, later.name]
    assert store.orphans([]) == [earlier.name, later.name]


def test_an_empty_store_has_no_names(store: WeightsStore) -> None:
    assert store.names() == []
    assert store.partial_names() == []


def test_deleting_twice_is_fine(store: WeightsStore) -> None:
    notice = store.publish(1, content)

    store.delete(notice.name)
    store.delete(notice.name)

    assert store.names() == []


dying_writer = """
import os, sys
from rollog.kernel.weights import WeightsStore
os.fsync = lambda descriptor: os._exit(9)
WeightsStore(sys.argv[1]).publish(1, b"weights")
"""


def test_a_writer_that_dies_before_the_rename_leaves_no_final_name(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", dying_writer, str(tmp_path)], check=False)
    store = WeightsStore(str(tmp_path))

    assert ended.returncode == 9
    assert store.names() == []
    (partial,) = store.partial_names()
    store.delete(partial)
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_cannot_be_named_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no name of a weights file"):
        WeightsStore(str(tmp_path / "store")).publish(-1, content)

    assert list((tmp_path / "store").iterdir()) == []


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the directory should be")

    with pytest.raises(WeightsError, match="could not be written"):
        WeightsStore(str(tmp_path / "store")).publish(1, content)


def test_a_download_that_is_already_there_is_used_and_a_broken_one_replaced(tmp_path: Path) -> None:
    store = WeightsStore(f"memory://{uuid4().hex}")
    notice = store.publish(1, content)
    local = store.fetch(notice, tmp_path)
    local.write_bytes(b"broken")

    assert store.fetch(notice, tmp_path).read_bytes() == content
    store.delete(notice.name)
    assert store.fetch(notice, tmp_path).read_bytes() == content


def test_an_unknown_protocol_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"weights\.uri = 'teleport://x'"):
        WeightsStore("teleport://x")


class _Vanishing(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Lists a file that somebody deletes before anything else is asked about it."""

    def ls(self, path: str, detail: bool = False, **_: object) -> list[str]:
        assert not detail
        return [*super().ls(path, detail=False), f"{path}/.partial-0123456789abcdef"]


def test_a_file_that_goes_away_while_bytes_are_counted_counts_nothing(tmp_path: Path) -> None:
    WeightsStore(str(tmp_path)).publish(0, content)
    store = WeightsStore(str(tmp_path), filesystem=(_Vanishing(skip_instance_cache=True), str(tmp_path)))

    assert store.num_bytes == len(content)


def test_the_address_of_a_directory_is_decoded_unless_an_earlier_rollog_took_it_as_it_is(
    tmp_path: Path,
) -> None:
    place = tmp_path / "my runs" / "50%"
    notice = WeightsStore(place.as_uri()).publish(1, content)
    assert [path.name for path in place.iterdir()] == [notice.name]
    assert [path.name for path in tmp_path.iterdir()] == ["my runs"]
    assert WeightsStore(place.as_uri()).fetch(notice, tmp_path / "cache") == place / notice.name

    as_it_is = tmp_path / "older%20runs"
    as_it_is.mkdir()
    assert WeightsStore(as_it_is.as_uri().replace("%25", "%")).filesystem[1] == str(as_it_is)


def test_the_names_of_all_directories_that_are_made_for_a_store_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("rollog.kernel.atomic_write.sync_path", synced.append)
    place = tmp_path / "a" / "b" / "store"
    WeightsStore(str(place)).publish_tensors(0, export_of({"x": numbers(3)}))
    assert {place.parent, place.parent.parent, tmp_path} <= set(synced)
    synced.clear()
    WeightsStore(str(place)).publish_tensors(1, export_of({"x": numbers(3)}))
    assert synced == []


def test_a_full_disk_is_named_with_what_is_free_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = WeightsStore(str(tmp_path / "store"))
    monkeypatch.setattr("rollog.kernel.versions.targets.sync_path", full)
    named = rf"version 3 could not be written to {store.uri}: .*No space left.*make room there: \d+ bytes"
    with pytest.raises(WeightsError, match=named):
        store.publish_tensors(3, export_of({"x": numbers(3)}))
