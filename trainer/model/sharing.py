"""Where the weights of a model lie while it is prepared: whole on this rank, or shared out among several.

An engine that shares weights out says how (`Sharing`). All that is done here with weights is then a collective
operation: every rank makes the same calls in the same order, and has one layer whole at a time.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor


class Sharing(Protocol):
    """How an engine shares weights out."""

    def building(self) -> AbstractContextManager[Any]:
        """A model that is built within this block has each layer shared out as soon as it is there."""
        ...

    def loading(self) -> AbstractContextManager[Any]:
        """Within this block `transformers` builds and reads a model so."""
        ...

    def place(self, model: nn.Module) -> None:
        """Move what is not shared out of a loaded model to where it is computed with."""
        ...

    def gathered(self, tensors: Iterable[Tensor]) -> AbstractContextManager[Any]:
        """Within this block `tensors` are whole on this rank; what is written into them is lost."""
        ...

    def writing(self, tensor: Tensor) -> AbstractContextManager[bool]:
        """The same of one tensor; true for the rank whose values all have after the block."""
        ...


class Unshared:
    """Every rank has all weights."""

    def building(self) -> AbstractContextManager[Any]:
        """As ever."""
        return nullcontext()

    def loading(self) -> AbstractContextManager[Any]:
        """As ever."""
        return nullcontext()

    def place(self, model: nn.Module) -> None:
        """The engine moves the whole model."""

    def gathered(self, tensors: Iterable[Tensor]) -> AbstractContextManager[Any]:  # noqa: ARG002 - the protocol's
        """They are whole."""
        return nullcontext()

    def writing(self, tensor: Tensor) -> AbstractContextManager[bool]:  # noqa: ARG002 - the protocol's
        """Each rank writes its own."""
        return nullcontext(enter_result=True)


unshared = Unshared()


def whole_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape of a weight, which DeepSpeed keeps of what it has shared out."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


def gather_when_called(module: nn.Module, sharing: Sharing) -> AbstractContextManager[Any]:
    """From here on `module` can be called: each layer of it has its weights whole while it computes.

    For calls without gradient, and until what is returned is closed. Where weights are not shared out, nothing is done.
    """
    hooks = ExitStack()
    if sharing is not unshared:
        for layer, weights in _layers(module):
            for handle in _hooks(layer, weights, sharing):
                hooks.callback(handle.remove)
    return hooks


def _layers(module: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """What is called, and the weights that it computes with: the layers of a list as wholes, others by themselves.

    Some layers of hybrid models compute with weights of parts of theirs that they do not call.
    """
    if weights := list(module.parameters(recurse=False)):
        yield module, weights
    for child in module.children():
        if not isinstance(module, nn.ModuleList):
            yield from _layers(child)
        elif weights := list(child.parameters()):
            yield child, weights


def _hooks(layer: nn.Module, weights: list[nn.Parameter], sharing: Sharing) -> Iterator[Any]:
    held = ExitStack()

    def gather(_layer: nn.Module, _inputs: object) -> None:
        held.enter_context(sharing.gathered(weights))

    def let_go(_layer: nn.Module, _inputs: object, _output: object) -> None:
        held.close()

    # First and last: what other hooks on the layer do, they do with its weights.
    yield layer.register_forward_pre_hook(gather, prepend=True)
    yield layer.register_forward_hook(let_go, always_call=True)
