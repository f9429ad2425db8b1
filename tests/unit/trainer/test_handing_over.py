"""Handing a model over: into memory of the one who takes it, the same bytes as without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from support.exports import numbers
from torch import nn

from benchmarks.harness.exports import file_of
from trainer.host_copy import HostCopy
from trainer.model.export import export_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.kernel.versions.tensors import TensorSpec


class SmallModel(nn.Module):
    """Tensors that engines have: large, not contiguous, of one element, of integers, without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(numbers(300, 50))
        self.turned = nn.Parameter(numbers(7, 5).T)
        self.one = nn.Parameter(torch.tensor(1.5))
        self.counts = nn.Parameter(torch.arange(9), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0, 3))


class Taking:
    """Keeps what it is given, and the names of tensors that it was asked for memory for."""

    def __init__(self) -> None:
        self.asked: dict[str, memoryview] = {}
        self.given: dict[str, memoryview] = {}

    def begin(self, table: Sequence[TensorSpec]) -> None:
        """Nothing is to be done."""

    def memory_for(self, spec: TensorSpec) -> memoryview:
        """New memory."""
        self.asked[spec.name] = memoryview(bytearray(spec.num_bytes))
        return self.asked[spec.name]

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        """Keep it."""
        self.given[spec.name] = data


devices = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", devices)
@pytest.mark.parametrize("most_kept_bytes", [0, 1 << 30], ids=["compared", "kept"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_written_into_memory_of_the_sink_has_the_bytes_that_are_handed_over_without(
    device: str, most_kept_bytes: int, dtype: str
) -> None:
    model, copy = SmallModel().to(device), HostCopy(most_kept_bytes=most_kept_bytes)
    for version in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        copy.fill(version, lambda sink: export_model(model, dtype, sink), compare=lambda *_: None)
        assert file_of(copy.export) == file_of(lambda sink: export_model(model, dtype, sink))


@pytest.mark.parametrize(
    ("dtype", "asked"), [("float32", {"turned"}), ("bfloat16", {"large", "turned", "one"})]
)
def test_memory_is_asked_for_tensors_alone_that_do_not_lie_there_as_they_are_published(
    dtype: str, asked: set[str]
) -> None:
    sink = Taking()
    export_model(SmallModel(), dtype, sink)
    assert sink.asked.keys() == asked
    assert sink.given.keys() == {"large", "turned", "one", "counts", "empty"}
    assert all(sink.given[name] is memory for name, memory in sink.asked.items())


@pytest.mark.gpu
def test_all_of_a_gpu_is_written_into_memory_of_the_sink() -> None:
    sink = Taking()
    export_model(SmallModel().cuda(), "float32", sink)
    assert sink.asked.keys() == {"large", "turned", "one", "counts"}
