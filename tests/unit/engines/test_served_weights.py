"""Which files a server loads when it is told to."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from support.exports import export_of

from producers.engines.served_weights import check_served_file, directory_variable, file_digest
from producers.engines.weights_file import ModelTensors
from rollog.kernel.errors import WeightsError
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from pathlib import Path

tensors = ModelTensors({"weight": (2, 3)})


def a_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"weight": np.zeros((2, 3), np.float32)}, path)
    return path


def checked(path: Path, directory: Path, digest: str | None = None) -> Path:
    digest = file_digest(path) if digest is None else digest
    return check_served_file(str(path), digest, tensors, {directory_variable: str(directory)})


def test_a_file_below_the_directory_with_its_digest_is_loaded(tmp_path: Path) -> None:
    path = a_file(tmp_path / "weights" / "run" / "v.safetensors")
    assert file_digest(path) == sha256(path.read_bytes()).hexdigest()
    assert checked(path, tmp_path / "weights") == path


def test_files_outside_of_the_directory_are_refused_however_they_are_named(tmp_path: Path) -> None:
    inside, outside = tmp_path / "weights", a_file(tmp_path / "other" / "v.safetensors")
    inside.mkdir()
    link = inside / "link.safetensors"
    link.symlink_to(outside)
    for path in (outside, inside / ".." / "other" / "v.safetensors", link):
        with pytest.raises(WeightsError, match=f"is not below {directory_variable}"):
            checked(path, inside)


def test_a_server_may_read_from_several_directories(tmp_path: Path) -> None:
    path = a_file(tmp_path / "downloads" / "v.safetensors")
    several = f"{tmp_path / 'weights'}{os.pathsep}{tmp_path / 'downloads'}"
    environment = {directory_variable: several}
    assert check_served_file(str(path), file_digest(path), tensors, environment) == path
    with pytest.raises(WeightsError, match=f"is not below {directory_variable}"):
        check_served_file(str(a_file(tmp_path / "v.safetensors")), "0" * 64, tensors, environment)


def test_other_bytes_than_those_that_were_verified_are_refused(tmp_path: Path) -> None:
    path = a_file(tmp_path / "v.safetensors")
    with pytest.raises(WeightsError, match="other bytes for the server"):
        checked(path, tmp_path, digest="0" * 64)


def test_a_file_that_does_not_fit_or_is_not_there_is_refused(tmp_path: Path) -> None:
    path = a_file(tmp_path / "v.safetensors")
    other = ModelTensors({"weight": (3, 3)})
    with pytest.raises(WeightsError, match="has shape"):
        check_served_file(str(path), file_digest(path), other, {directory_variable: str(tmp_path)})
    with pytest.raises(WeightsError, match="one directory under one path"):
        checked(tmp_path / "missing.safetensors", tmp_path, digest="")
    with pytest.raises(WeightsError, match="cannot be read"):
        file_digest(tmp_path / "missing.safetensors")


def a_manifest(directory: Path) -> tuple[Path, list[Path]]:
    """Of two shards."""
    store = WeightsStore(str(directory))
    notice = store.publish_tensors(
        1, export_of({"weight": torch.zeros(2, 3), "other": torch.ones(2)}), most_bytes=24
    )
    return directory / notice.name, [directory / name for name in store.file_names(notice)[:-1]]


of_manifest = ModelTensors({"weight": (2, 3), "other": (2,)})


def check_manifest(path: Path, directory: Path) -> Path:
    environment = {directory_variable: str(directory)}
    return check_served_file(str(path), file_digest(path), of_manifest, environment)


def test_a_manifest_is_loaded_when_its_shards_have_their_digests(tmp_path: Path) -> None:
    path, shards = a_manifest(tmp_path)
    assert check_manifest(path, tmp_path) == path
    assert len(shards) == 2
    for shard in shards:
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        with pytest.raises(WeightsError, match=f"{shard.name} has a leaf"):
            check_manifest(path, tmp_path)
        data[-1] ^= 1
        shard.write_bytes(data)
    shards[1].unlink()
    with pytest.raises(WeightsError, match=shards[1].name):
        check_manifest(path, tmp_path)


def test_a_shard_that_is_a_link_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "weights"
    path, shards = a_manifest(inside)
    shards[0].rename(tmp_path / "elsewhere")
    shards[0].symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WeightsError, match=f"{shards[0].name} leads out of"):
        check_manifest(path, inside)


def test_a_manifest_of_other_tensors_is_refused(tmp_path: Path) -> None:
    path, _ = a_manifest(tmp_path)
    with pytest.raises(WeightsError, match="unknown other"):
        checked(path, tmp_path)


def test_without_a_directory_nothing_is_loaded(tmp_path: Path) -> None:
    path = a_file(tmp_path / "v.safetensors")
    with pytest.raises(WeightsError, match="is not set in the server's environment"):
        check_served_file(str(path), file_digest(path), tensors, {})
