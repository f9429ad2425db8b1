"""Handing a model over: into memory of the one who takes it, the same bytes as without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from support.small_training import make_model

from benchmarks.harness.exports import file_of
from trainer.host_copy import HostCopy
from trainer.model.export import export_model
from trainer.model.policy import load_model

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from rollog.kernel.versions.tensors import TensorSpec


devices = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", devices)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_written_into_memory_of_the_sink_has_the_bytes_that_are_handed_over_without(
    tmp_path: Path, device: str, dtype: str
) -> None:
    model: nn.Module = load_model(make_model(tmp_path), None, "float32")
    model.to(device)
    copy = HostCopy()
    for version in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
        copy.fill(version, lambda sink: export_model(model, dtype, sink), compare=lambda *_: None)
        assert file_of(copy.export) == file_of(lambda sink: export_model(model, dtype, sink))


def test_a_tensor_that_lies_in_host_memory_as_it_is_published_is_not_copied_on_its_way(
    tmp_path: Path,
) -> None:
    model = load_model(make_model(tmp_path), None, "float32")
    places = {parameter.data_ptr() for parameter in model.parameters()}
    seen = list[int]()

    class Looking:
        def begin(self, table: object) -> None:
            del table

        def memory_for(self, spec: TensorSpec) -> memoryview:
            raise AssertionError(f"{spec.name} is there already")

        def add(self, spec: TensorSpec, data: memoryview) -> None:
            del spec
            seen.append(torch.frombuffer(data, dtype=torch.uint8).data_ptr())

    export_model(model, "float32", Looking())
    assert set(seen) <= places
