"""Handing a model's weights over, tensor after tensor: what every engine that holds a model does to export them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rollog.kernel.versions.tensors import TensorMemory, TensorSpec, file_order
from rollog.kernel.versions.torch_types import torch_types, type_names
from trainer.model.adapters import merged_tensors, tensors_apart
from trainer.model.policy import dtypes
from trainer.model.sharing import unshared, whole_shape

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rollog.kernel.versions.tensors import TensorSink
    from trainer.model.adapters import PublishedTensor
    from trainer.model.sharing import Sharing


def export_model(
    model: nn.Module, dtype: str, sink: TensorSink | None, sharing: Sharing = unshared, *, merged: bool = True
) -> None:
    """Hand all weights to `sink`, floating ones in `dtype`, in the order of `file_order`.

    Adapters are `merged` into their layers, or come beside these.
    Where ranks share tensors out, one at a time is gathered, which is a collective operation: a rank without a sink
    takes part in it and in nothing else.
    """
    tensors = merged_tensors(model) if merged else tensors_apart(model)
    published = {tensor.name: tensor for tensor in tensors}
    table = file_order([_spec(tensor, dtypes[dtype]) for tensor in published.values()])
    if sink is not None:
        sink.begin(table)
    for spec in table:
        tensor = published[spec.name]
        with sharing.gathered(tensor.parts):
            if sink is not None:
                sink.add(spec, _in_host_memory(tensor.value(), spec, sink))


def _in_host_memory(tensor: Tensor, spec: TensorSpec, sink: TensorSink) -> memoryview:
    """The bytes of a tensor; those that do not lie there as they are published go straight where `sink` wants them.

    Memory that was never written takes longer to be written than a device takes to send as much.
    """
    dtype = torch_types[spec.dtype]
    lies_there = tensor.device.type == "cpu" and tensor.dtype == dtype and tensor.is_contiguous()
    fits = spec.num_bytes > 0 and tuple(tensor.shape) == spec.shape
    if lies_there or not fits or not isinstance(sink, TensorMemory):
        return tensor_bytes(tensor, dtype)
    there = tensor.detach()
    if there.device.type != "cpu":
        there = there.to(dtype)  # or PyTorch takes new host memory to convert it there
    memory = sink.memory_for(spec)
    torch.frombuffer(memory, dtype=dtype).view(spec.shape).copy_(there)
    return memory


def tensor_bytes(tensor: Tensor, dtype: torch.dtype) -> memoryview:
    """The little-endian row-major bytes of a tensor, a floating one in `dtype`; a view where no copy is needed."""
    here = tensor.detach().to("cpu")
    if here.is_floating_point():
        here = here.to(dtype)
    data: memoryview = here.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return data


def tensor_of_bytes(spec: TensorSpec, data: memoryview) -> Tensor:
    """A copy of what was handed over, with at least one element."""
    return torch.frombuffer(bytearray(data), dtype=torch_types[spec.dtype]).reshape(spec.shape)


def _spec(tensor: PublishedTensor, dtype: torch.dtype) -> TensorSpec:
    # The adapter's product has the shape of the layer's weight.
    weight = tensor.parts[0]
    type_name = type_names[dtype if weight.is_floating_point() else weight.dtype]
    return TensorSpec(tensor.name, type_name, whole_shape(weight))
