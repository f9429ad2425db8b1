"""How far weights are from published ones, where they are not the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.files import merged_tensors
from trainer.model.export import tensor_of_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from rollog.kernel.versions.tensors import Export, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsDistance:
    """How far weights are from published ones, over all floating-point tensors.

    `max_absolute` is the largest |a - b|, `relative` the norm of a - b by the norm of b, b the published ones.
    """

    max_absolute: float
    relative: float


def weights_distance(export: Export, published: Path) -> WeightsDistance:
    """How far exported weights are from published ones, tensor by tensor.

    Raises WeightsError where names or shapes differ.
    """
    try:
        sink = _Distances(merged_tensors(published, load_file))
    except SafetensorError as error:
        raise WeightsError(f"weights {published} cannot be compared: {error}") from error
    export(sink)
    if not sink.are_alike:
        raise WeightsError(f"weights {published} have other tensors than the model trained here")
    norm = sink.norm**0.5
    return WeightsDistance(max_absolute=sink.largest, relative=sink.squares**0.5 / norm if norm > 0 else 0.0)


class _Distances:
    """Compares each tensor as it comes. What is not alike is said afterwards: an error would end the other ranks."""

    def __init__(self, published: dict[str, Tensor]) -> None:
        self._published = published
        self.are_alike = False
        self.largest = 0.0
        self.squares = 0.0
        self.norm = 0.0

    def begin(self, table: Sequence[TensorSpec]) -> None:
        there = {name: tuple(tensor.shape) for name, tensor in self._published.items()}
        self.are_alike = there == {spec.name: spec.shape for spec in table}

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        if not self.are_alike or not spec.num_bytes:
            return
        there = self._published[spec.name]
        if not there.is_floating_point():
            return
        there = there.to(torch.float64)
        difference = tensor_of_bytes(spec, data).to(torch.float64) - there
        self.largest = max(self.largest, difference.abs().max().item())
        self.squares += difference.square().sum().item()
        self.norm += there.square().sum().item()
