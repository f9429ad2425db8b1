"""Which tensors of a version an engine does not hold yet, and reading those alone.

A manifest has the digests of every tensor, so two versions are compared without a look at their bytes, however many
versions were passed over and in whatever form they are stored. A single file says nothing: all of it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors import safe_open

from rollog.kernel.versions.adapter import matrix_names
from rollog.kernel.versions.identity import TensorDigest
from rollog.kernel.versions.merging import with_merged

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from rollog.kernel.versions.adapter import Adapter
    from rollog.kernel.versions.manifest import Manifest

    ReadTensors = Callable[[Collection[str]], Iterator[tuple[str, torch.Tensor]]]
    """Gives tensors of a version by their names."""


def tensor_digests(manifest: Manifest | None, *, merged: bool = True) -> dict[str, TensorDigest]:
    """Digests of the tensors of a version by their names; none for a single file, which has no manifest.

    Where adapters are `merged`, what stands for the weight of an adapted layer depends on its matrices, too.
    """
    if manifest is None:
        return {}
    digests = {tensor.spec.name: tensor for tensor in manifest.tensors}
    for layer in manifest.adapter.targets if manifest.adapter is not None and merged else ():
        weight, *matrices = (digests[name] for name in (f"{layer}.weight", *matrix_names(layer)))
        leaves = (*weight.leaves, *(leaf for each in matrices for leaf in each.leaves))
        digests[weight.spec.name] = TensorDigest(weight.spec, leaves)
    return digests


def not_held(
    names: Sequence[str], wanted: Mapping[str, TensorDigest], held: Mapping[str, TensorDigest]
) -> list[str]:
    """Those of `names` that an engine which holds `held` has to be given, in their order."""
    return [name for name in names if name not in wanted or held.get(name) != wanted[name]]


def changed_tensors(
    names: Collection[str], read: ReadTensors, adapter: Adapter | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """These tensors of the version that `read` reads, the adapter merged into them. Raises WeightsError, OSError."""
    if adapter is None:
        return read(set(names))
    weights = {f"{layer}.weight": layer for layer in adapter.targets}
    needed = {each for name in names if name in weights for each in matrix_names(weights[name])}
    matrices = dict(read(needed))
    return with_merged(read(set(names)), adapter, matrices.__getitem__)


def read_tensors(files: Iterable[Path], names: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """These tensors of safetensors files, one after another; nothing is read of others. Raises OSError."""
    for file in files:
        with safe_open(file, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118
                if name in names:
                    yield name, shard.get_tensor(name)
