"""How far two weights files are apart, where they are not the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file

from rollog.kernel.errors import WeightsError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsDistance:
    """How far weights are from published ones, over all floating-point tensors.

    `max_absolute` is the largest |a - b|, `relative` the norm of a - b by the norm of b, b the published ones.
    """

    max_absolute: float
    relative: float


def weights_distance(weights: bytes, published: Path) -> WeightsDistance:
    """How far a weights file is from a published one. Raises WeightsError where names or shapes differ."""
    try:
        here, there = load(weights), load_file(published)
    except SafetensorError as error:
        raise WeightsError(f"weights file {published} cannot be compared: {error}") from error
    if {name: tensor.shape for name, tensor in here.items()} != {
        name: tensor.shape for name, tensor in there.items()
    }:
        raise WeightsError(f"weights file {published} has other tensors than the model trained here")
    largest, squares, norm = 0.0, 0.0, 0.0
    for name, tensor in there.items():
        if not tensor.is_floating_point() or tensor.numel() == 0:
            continue
        difference = here[name].to(torch.float64) - tensor.to(torch.float64)
        largest = max(largest, difference.abs().max().item())
        squares += difference.square().sum().item()
        norm += tensor.to(torch.float64).square().sum().item()
    return WeightsDistance(max_absolute=largest, relative=(squares / norm) ** 0.5 if norm > 0 else 0.0)
