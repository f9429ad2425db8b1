"""Weights as an engine hands them over: whole in memory, or made of given tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.harness.exports import file_of
from rollog.kernel.versions.identity import digest_of_export
from rollog.kernel.versions.tensors import TensorSpec, file_order
from rollog.kernel.versions.torch_types import type_names
from trainer.model.export import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollog.kernel.versions.tensors import Export, TensorSink
    from trainer.engines.ports import TrainingEngine


def exported_by(engine: TrainingEngine) -> bytes:
    """All weights as one safetensors file."""
    return file_of(engine.export_weights)


def content_of(engine: TrainingEngine) -> str:
    """The content digest of the weights."""
    return digest_of_export(engine.export_weights)


def export_of(tensors: Mapping[str, torch.Tensor]) -> Export:
    """Hands these tensors over, in the order that is asked of an engine."""

    def export(sink: TensorSink) -> None:
        specs = [
            TensorSpec(name, type_names[tensor.dtype], tuple(tensor.shape))
            for name, tensor in tensors.items()
        ]
        table = file_order(specs)
        sink.begin(table)
        for spec in table:
            sink.add(spec, tensor_bytes(tensors[spec.name], tensors[spec.name].dtype))

    return export


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random float32."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))
