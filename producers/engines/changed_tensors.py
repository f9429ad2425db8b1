"""Which tensors of a version an engine does not hold yet, and reading those alone.

A manifest has the digests of every tensor, so two versions are compared without a look at their bytes, however many
versions were passed over and in whatever form they are stored. A single file says nothing: all of it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors import safe_open

from rollog.kernel.versions.files import read_manifest, weights_files
from rollog.kernel.versions.manifest import manifest_suffix

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from rollog.kernel.versions.identity import TensorDigest


def tensor_digests(path: Path) -> dict[str, TensorDigest]:
    """Digests of the tensors of a version by their names; none for a single file. Raises WeightsError."""
    if path.suffix != manifest_suffix:
        return {}
    return {tensor.spec.name: tensor for tensor in read_manifest(path)[0].tensors}


def not_held(
    names: Sequence[str], wanted: Mapping[str, TensorDigest], held: Mapping[str, TensorDigest]
) -> list[str]:
    """Those of `names` that an engine which holds `held` has to be given, in their order."""
    return [name for name in names if name not in wanted or held.get(name) != wanted[name]]


def read_tensors(path: Path, names: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """These tensors of a version, one after another; nothing is read of others. Raises WeightsError, OSError."""
    for path_of_shard in weights_files(path):
        with safe_open(path_of_shard, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118
                if name in names:
                    yield name, shard.get_tensor(name)
