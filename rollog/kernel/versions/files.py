"""What a path to the weights of a version leads to: one safetensors file, or a manifest with its shards beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.checking import check_shard
from rollog.kernel.versions.manifest import manifest_suffix, parse_manifest
from rollog.kernel.versions.manifest_text import most_manifest_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rollog.kernel.versions.adapter import Adapter
    from rollog.kernel.versions.manifest import Manifest

_Tensor = TypeVar("_Tensor")


def read_manifest(path: Path) -> tuple[Manifest, bytes]:
    """The manifest at a path, and its text. Raises WeightsError."""
    try:
        with path.open("rb") as file:
            data = file.read(most_manifest_bytes + 1)
    except OSError as error:
        raise WeightsError(f"{path.name} cannot be read: {error.strerror or error}") from error
    return parse_manifest(data, path.name), data


def manifest_at(path: Path) -> Manifest | None:
    """What a version's manifest says; None for a single file. Raises WeightsError."""
    return read_manifest(path)[0] if path.suffix == manifest_suffix else None


def adapter_at(path: Path) -> Adapter | None:
    """The adapter of a version; None where it has none, and for a single file. Raises WeightsError."""
    manifest = manifest_at(path)
    return None if manifest is None else manifest.adapter


def weights_files(path: Path) -> list[Path]:
    """The safetensors files of a version: `path` itself, or the shards of the manifest there. Raises WeightsError."""
    return files_of(path, manifest_at(path))


def files_of(path: Path, manifest: Manifest | None) -> list[Path]:
    """The same, of a version that has this manifest, or is a single file."""
    return [path] if manifest is None else [path.with_name(shard.name) for shard in manifest.shards]


def merged_tensors(path: Path, load_file: Callable[[Path], Mapping[str, _Tensor]]) -> dict[str, _Tensor]:
    """All tensors of a version, as `load_file` gives those of one safetensors file. Raises WeightsError."""
    return {name: tensor for file in weights_files(path) for name, tensor in load_file(file).items()}


def check_files(path: Path) -> None:
    """Compare the shards beside a manifest with it, byte for byte. Raises WeightsError."""
    for shard in read_manifest(path)[0].shards:
        try:
            with path.with_name(shard.name).open("rb") as file:
                check_shard(file, shard)
        except OSError as error:
            raise WeightsError(f"{shard.name} cannot be read: {error.strerror or error}") from error
