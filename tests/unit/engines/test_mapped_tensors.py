"""Files of versions stay mapped from one version to the next, and what is read is always what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file
from support.exports import export_of, numbers

from producers.engines import mapped_tensors
from producers.engines.mapped_tensors import MappedTensors
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.copies import VersionCopy
from rollog.kernel.versions.files import manifest_at
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from schemas import WeightVersion

    Tensors = Mapping[str, torch.Tensor]

num_versions = 5


@pytest.fixture
def versions() -> list[dict[str, torch.Tensor]]:
    """Types of all sizes; one tensor has no elements, one has no dimension, and all pages of `w` change."""
    first = {
        "w": numbers(300, 200).to(torch.bfloat16),
        "scale": torch.tensor(0.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "ids": torch.arange(5, dtype=torch.int16),
    }
    return [
        first | {"w": numbers(300, 200, seed=version).to(torch.bfloat16), "ids": first["ids"] + version}
        for version in range(num_versions)
    ]


class Copied:
    """A worker's copy, into whose files each version of a store is read."""

    def __init__(self, home: Path) -> None:
        self.store = WeightsStore(f"memory://{home.name}-{id(self)}")
        self.copy = VersionCopy(home / "copy")

    def path_of(self, version: int, tensors: Tensors) -> Path:
        notice: WeightVersion = self.store.publish_tensors(version, export_of(tensors))
        return self.store.bring(notice, self.copy)


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    return Copied(tmp_path)


def read_all(
    reader: MappedTensors, path: Path, into: Callable[[torch.Tensor], object] = torch.clone
) -> dict[str, torch.Tensor]:
    found = {}
    with reader.opened(path, manifest_at(path)) as read:
        for name, tensor in read({"w", "scale", "empty", "ids"}):
            found[name] = tensor.clone()
            into(tensor)
    return found


def assert_equal(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor), name


def lines_of_maps(directory: Path) -> list[str]:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [line for line in maps if str(directory) in line]


def test_files_that_are_written_in_place_are_mapped_once_and_read_as_they_are(
    copied: Copied, versions: list[dict[str, torch.Tensor]]
) -> None:
    reader, addresses = MappedTensors(), []
    for version, tensors in enumerate(versions):
        path = copied.path_of(version, tensors)
        assert_equal(read_all(reader, path), tensors)
        addresses.append([line.split()[0] for line in lines_of_maps(path.parent) if " r--s " in line])
    # The copy itself has its files mapped too, to write to them.
    assert addresses[0] == []
    assert len(addresses[1]) == 1
    assert addresses[1:] == [addresses[1]] * (num_versions - 1)


def test_only_tensors_that_are_asked_for_are_given(
    copied: Copied, versions: list[dict[str, torch.Tensor]]
) -> None:
    path = copied.path_of(0, versions[0])
    with MappedTensors().opened(path, manifest_at(path)) as read:
        assert [name for name, _ in read({"ids", "scale", "unknown"})] == ["scale", "ids"]
        assert [name for name, _ in read({"empty"})] == ["empty"]


def test_a_model_that_writes_into_what_it_is_given_changes_neither_files_nor_later_versions(
    copied: Copied, versions: list[dict[str, torch.Tensor]]
) -> None:
    reader = MappedTensors()
    for version, tensors in enumerate(versions):
        path = copied.path_of(version, tensors)
        assert_equal(read_all(reader, path, torch.Tensor.zero_), tensors)
        assert_equal(read_all(MappedTensors(), path), tensors)
        assert [line for line in lines_of_maps(path.parent) if " r--s " in line] == []


def test_where_the_system_tells_nothing_of_pages_nothing_stays_mapped(
    copied: Copied, versions: list[dict[str, torch.Tensor]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mapped_tensors, "_memory_maps", tmp_path / "none")
    reader = MappedTensors()
    for version, tensors in enumerate(versions[:3]):
        path = copied.path_of(version, tensors)
        assert_equal(read_all(reader, path, torch.Tensor.zero_), tensors)
        assert [line for line in lines_of_maps(path.parent) if " r--s " in line] == []


def test_files_of_another_copy_are_read_anew_and_those_of_the_first_are_given_back(
    tmp_path: Path, versions: list[dict[str, torch.Tensor]]
) -> None:
    reader = MappedTensors()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        copied = Copied(tmp_path / name)
        for version, tensors in enumerate(versions[:3]):
            assert_equal(read_all(reader, copied.path_of(version, tensors)), tensors)
        assert [line for line in lines_of_maps(tmp_path / name) if " r--s " in line]
    assert lines_of_maps(tmp_path / "one") == []


def test_after_a_load_that_failed_nothing_stays_mapped(
    copied: Copied, versions: list[dict[str, torch.Tensor]]
) -> None:
    reader = MappedTensors()
    for version in range(2):
        read_all(reader, copied.path_of(version, versions[version]))
    path = copied.path_of(2, versions[2])

    def fail(_: torch.Tensor) -> None:
        raise ValueError("no such parameter")

    with pytest.raises(ValueError, match="no such parameter"):
        read_all(reader, path, fail)
    assert [line for line in lines_of_maps(path.parent) if " r--s " in line] == []
    assert_equal(read_all(reader, path), versions[2])


def test_a_file_that_was_cut_is_refused_by_its_name_and_size(
    copied: Copied, versions: list[dict[str, torch.Tensor]]
) -> None:
    reader = MappedTensors()
    for version in range(2):
        path = copied.path_of(version, versions[version])
        read_all(reader, path)
    (shard,) = path.parent.glob("*.safetensors")
    num_bytes = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=rf"{shard.name} has {num_bytes - 1} bytes instead of {num_bytes}"):
        read_all(reader, path)


def test_a_version_in_one_file_is_read_too(tmp_path: Path, versions: list[dict[str, torch.Tensor]]) -> None:
    reader = MappedTensors()
    for version, tensors in enumerate(versions[:3]):
        path = tmp_path / f"v{version:06d}.safetensors"
        save_file(tensors, path)
        assert_equal(read_all(reader, path), tensors)
        path.unlink()
    assert lines_of_maps(tmp_path) == []
