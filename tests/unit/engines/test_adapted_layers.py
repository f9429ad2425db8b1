"""Adapters of a version beside the layers of a model of transformers."""

from __future__ import annotations

import torch
from torch import nn

from rollog.kernel.versions.adapted_layers import AdaptedLayers
from rollog.kernel.versions.adapter import Adapter, matrix_names


def test_the_files_of_a_version_may_change_once_it_is_applied() -> None:
    """On processors they are mapped into memory, and the next version is written over them while this one serves."""
    model = nn.ModuleDict({"up": nn.Linear(4, 6)})
    adapter = Adapter(rank=2, scaling=1.5, targets=("up",))
    first, second = matrix_names("up")
    tensors = {first: torch.ones(2, 4), second: torch.ones(6, 2)}
    inputs, layer = torch.ones(1, 4), model["up"]
    before = layer(inputs)
    applied = AdaptedLayers()
    applied.apply(model, adapter, tensors)
    adapted = layer(inputs)
    assert torch.allclose(adapted, before + 1.5 * 2 * 4)
    for tensor in tensors.values():
        tensor.fill_(7.0)
    assert torch.equal(layer(inputs), adapted)
    applied.apply(model, None, {})
    assert torch.equal(layer(inputs), before)
