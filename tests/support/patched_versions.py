"""Versions of a small model of many kinds of tensors, stored in full and as patches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file

from rollog.kernel.versions.bit_patterns import bit_patterns
from rollog.kernel.versions.files import merged_tensors
from rollog.kernel.versions.patches import encode
from rollog.kernel.versions.tensors import TensorSpec, file_order, type_bytes
from rollog.kernel.versions.torch_types import type_names
from support.exports import export_of
from trainer.model.export import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from rollog.kernel.versions.patch_shards import PatchSink
    from rollog.kernel.weights import WeightsStore
    from schemas import WeightVersion

Tensors = dict[str, torch.Tensor]


def first_tensors(seed: int = 0) -> Tensors:
    """Large and small ones, one without elements, one that never changes, negative zeros, one that changes wholly."""
    draw = torch.Generator().manual_seed(seed)
    return {
        "large": torch.randn(1200, 1000, generator=draw).to(torch.bfloat16),
        "half": torch.randn(40, 50, generator=draw).to(torch.float16),
        "same": torch.randn(7, generator=draw).to(torch.bfloat16),
        "zeros": -torch.zeros(3000, dtype=torch.bfloat16),
        "empty": torch.empty(0, 2, dtype=torch.bfloat16),
        "everywhere": torch.randn(20, 30, generator=draw),
        "steps": torch.tensor(0),
    }


def next_tensors(tensors: Tensors, seed: int) -> Tensors:
    """What a step makes: few elements move to a neighbouring value; two tensors change wholly."""
    new = {name: tensor.clone() for name, tensor in tensors.items()}
    draw = np.random.default_rng(seed)
    # Below the pattern of -0.0 there is a NaN.
    for name, lowest in {"large": -1, "half": -1, "zeros": 1}.items():
        patterns = new[name].view(torch.int16).numpy().reshape(-1)
        places = np.flatnonzero(draw.random(patterns.size) < 0.02)
        patterns[places] += draw.choice(np.array([1, lowest], dtype=np.int16), places.size)
    new["everywhere"] += 1
    new["steps"] += 1
    return new


def versions_of(num: int, seed: int = 0) -> list[Tensors]:
    """So many versions, one after the other."""
    versions = [first_tensors(seed)]
    for version in range(1, num):
        versions.append(next_tensors(versions[-1], 100 * seed + version))
    return versions


def patch_writer(base: Tensors, new: Tensors) -> Callable[[PatchSink], None]:
    """Hands over what changed between two versions."""

    def write(sink: PatchSink) -> None:
        specs = [TensorSpec(name, type_names[each.dtype], tuple(each.shape)) for name, each in new.items()]
        for spec in file_order(specs):
            size = type_bytes[spec.dtype]
            old_data, data = (tensor_bytes(each[spec.name], each[spec.name].dtype) for each in (base, new))
            sink.add(spec, data, partial(encode, bit_patterns(old_data, size), bit_patterns(data, size)))

    return write


def publish_versions(
    store: WeightsStore, versions: Sequence[Tensors], full: Iterable[int] = (0,), *, most_bytes: int = 4000
) -> list[WeightVersion]:
    """Store these versions from 0 on, in full where `full` says so, each other one as a patch of the one before."""
    notices: list[WeightVersion] = []
    for version, tensors in enumerate(versions):
        if version in set(full):
            notices.append(store.publish_tensors(version, export_of(tensors), most_bytes=most_bytes))
        else:
            write = patch_writer(versions[version - 1], tensors)
            notices.append(store.publish_patch(version, notices[-1], write))
    return notices


def found_at(path: Path) -> Tensors:
    """The tensors of a version on this disk."""
    return merged_tensors(path, load_file)


def are_equal(one: Tensors, other: Tensors) -> bool:
    """Whether all bits are."""
    return one.keys() == other.keys() and all(
        tensor_bytes(one[name], one[name].dtype) == tensor_bytes(other[name], other[name].dtype)
        and one[name].shape == other[name].shape
        for name in one
    )
