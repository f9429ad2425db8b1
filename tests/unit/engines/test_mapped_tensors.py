"""Files of a copy in shared memory stay mapped from one version to the next, and are read as they are then."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file
from support.patched_versions import are_equal, publish_versions, versions_of

from producers.engines.mapped_tensors import MappedTensors
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.copies import VersionCopy
from rollog.kernel.versions.files import manifest_at
from rollog.kernel.versions.tensors import type_bytes
from rollog.kernel.versions.torch_types import torch_types
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patched_versions import Tensors

num_versions = 6
full_forms = (0, 3)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory in shared memory."""
    try:
        directory = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rollog-test-")
    except OSError:
        pytest.skip("this system has no /dev/shm")
    with directory as name:
        yield Path(name)


@pytest.fixture
def versions() -> list[Tensors]:
    """Of tensors of many types, for several shards."""
    return versions_of(num_versions)


class Copied:
    """A copy that patches and full forms take from one version to the next."""

    def __init__(self, directory: Path, versions: list[Tensors]) -> None:
        self.directory = directory
        self._store = WeightsStore(f"memory://{directory.name}-{id(self)}")
        self._notices = publish_versions(self._store, versions, full_forms)
        self.copy = VersionCopy(directory)

    def path_of(self, version: int) -> Path:
        return self._store.bring(self._notices[version], self.copy)


@pytest.fixture
def copied(shared: Path, versions: list[Tensors]) -> Copied:
    return Copied(shared / "copy", versions)


def nothing(_: torch.Tensor) -> None:
    """A model that takes what it is given as it is."""


def read_all(reader: MappedTensors, path: Path, give: Callable[[torch.Tensor], object] = nothing) -> Tensors:
    found = {}
    manifest = manifest_at(path)
    names = {tensor.spec.name for tensor in manifest.tensors} if manifest is not None else {"a"}
    with reader.opened(path, manifest) as read:
        for name, tensor in read(names):
            found[name] = tensor.clone()
            give(tensor)
    return found


def mapped(directory: Path, rights: str = "r--s") -> set[str]:
    """Addresses at which files of a directory are mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {line.split()[0] for line in lines if str(directory) in line and f" {rights} " in line}


def test_a_copy_that_is_changed_in_place_is_mapped_once_and_read_as_it_is(
    copied: Copied, versions: list[Tensors]
) -> None:
    reader, addresses = MappedTensors(), []
    for version, tensors in enumerate(versions):
        assert are_equal(read_all(reader, copied.path_of(version)), tensors), version
        addresses.append(mapped(copied.directory))
    assert addresses[0] == set(), "the first version is read in private pages"
    assert len(addresses[1]) > 1, "there are several shards"
    assert addresses[1:] == [addresses[1]] * (num_versions - 1)
    assert mapped(copied.directory, "rw-p") == set()


def test_only_tensors_that_are_asked_for_are_given(copied: Copied) -> None:
    path = copied.path_of(0)
    with MappedTensors().opened(path, manifest_at(path)) as read:
        assert {name for name, _ in read({"large", "steps", "unknown"})} == {"large", "steps"}
        assert [name for name, _ in read({"empty"})] == ["empty"]


def test_a_model_that_writes_into_what_it_is_given_changes_neither_files_nor_later_versions(
    copied: Copied, versions: list[Tensors]
) -> None:
    reader = MappedTensors()
    for version, tensors in enumerate(versions):
        path = copied.path_of(version)
        assert are_equal(read_all(reader, path, torch.Tensor.zero_), tensors)
        assert are_equal(read_all(MappedTensors(), path), tensors)
        assert mapped(copied.directory) == set()


def smaps_with(directory: Path, **kib: int) -> Path:
    """What the system says of this process's memory, with other numbers in it."""
    path = directory / "smaps"
    lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(_changed(line, kib) for line in lines), encoding="utf-8")
    return path


def _changed(line: str, kib: dict[str, int]) -> str:
    name = line.partition(":")[0]
    return f"{name}: {kib[name]} kB" if name in kib else line


def test_while_pages_are_swapped_out_private_ones_are_made_again(
    copied: Copied, versions: list[Tensors], tmp_path: Path
) -> None:
    memory_maps = tmp_path / "smaps"
    reader = MappedTensors(memory_maps=memory_maps)
    seen = []

    def look_with_swap(_: torch.Tensor) -> None:
        smaps_with(tmp_path, Swap=4, Anonymous=0)

    def look(_: torch.Tensor) -> None:
        smaps_with(tmp_path, Swap=0)

    for version, give in enumerate((look_with_swap, look, nothing, nothing)):
        assert are_equal(read_all(reader, copied.path_of(version), give), versions[version])
        seen.append(bool(mapped(copied.directory)))
    assert seen == [False, False, True, True]


def test_where_the_system_tells_nothing_of_pages_none_stay_mapped(
    copied: Copied, versions: list[Tensors], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for memory_maps in (tmp_path / "none", empty):
        reader = MappedTensors(memory_maps=memory_maps)
        for version in range(3):
            path = copied.path_of(version)
            assert are_equal(read_all(reader, path, torch.Tensor.zero_), versions[version])
            assert mapped(copied.directory) == set()
        copied.copy.discard()


def test_files_that_are_not_in_shared_memory_do_not_stay_mapped(
    tmp_path: Path, versions: list[Tensors]
) -> None:
    copied, reader = Copied(tmp_path / "copy", versions), MappedTensors()
    for version, tensors in enumerate(versions):
        assert are_equal(read_all(reader, copied.path_of(version)), tensors)
        assert mapped(copied.directory) | mapped(copied.directory, "rw-p") == set()


def test_files_of_another_copy_are_read_anew_and_those_of_the_first_are_given_back(
    shared: Path, versions: list[Tensors], tmp_path: Path
) -> None:
    reader = MappedTensors()
    for name in ("one", "other"):
        copied = Copied(shared / name, versions)

        def look(_: torch.Tensor, directory: Path = copied.directory) -> None:
            both = mapped(shared) | mapped(shared, "rw-p")
            assert both == mapped(directory) | mapped(directory, "rw-p") != set()

        for version in range(3):
            assert are_equal(read_all(reader, copied.path_of(version), look), versions[version])
    assert read_all(reader, Copied(tmp_path / "copy", versions).path_of(0))
    assert mapped(shared) == set()


def test_a_copy_that_was_made_invalid_is_read_into_the_files_that_are_mapped(
    copied: Copied, versions: list[Tensors]
) -> None:
    reader = MappedTensors()
    for version in range(2):
        read_all(reader, copied.path_of(version))
    before = mapped(copied.directory)
    copied.copy.invalidate()
    assert copied.copy.pair is None
    assert are_equal(read_all(reader, copied.path_of(2)), versions[2])
    assert mapped(copied.directory) == before


def test_after_a_load_that_failed_nothing_stays_mapped(copied: Copied, versions: list[Tensors]) -> None:
    reader = MappedTensors()
    for version in range(2):
        read_all(reader, copied.path_of(version))
    path = copied.path_of(2)

    def fail(_: torch.Tensor) -> None:
        raise ValueError("no such parameter")

    with pytest.raises(ValueError, match="no such parameter"):
        read_all(reader, path, fail)
    assert mapped(copied.directory) == set()
    assert are_equal(read_all(reader, path), versions[2])


def test_a_file_that_was_cut_is_refused_by_its_name_and_size(copied: Copied) -> None:
    reader = MappedTensors()
    for version in range(2):
        path = copied.path_of(version)
        read_all(reader, path)
    shard = min(copied.directory.glob("*.safetensors"))
    num_bytes = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=rf"{shard.name} has {num_bytes - 1} bytes instead of {num_bytes}"):
        read_all(reader, path)


def test_a_version_in_one_file_is_read_too(shared: Path) -> None:
    reader = MappedTensors()
    for version in range(3):
        path = shared / f"v{version:06d}.safetensors"
        save_file({"a": torch.full((5,), version)}, path)
        assert read_all(reader, path)["a"].tolist() == [version] * 5
        path.unlink()
    assert mapped(shared) | mapped(shared, "rw-p") == set()


def test_every_type_of_a_table_is_one_of_pytorch_of_as_many_bytes() -> None:
    assert {name: dtype.itemsize for name, dtype in torch_types.items()} == type_bytes
