"""Low-rank adapters of a version in a model of transformers: applied beside their layers, as the trainer does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollog.kernel.versions.adapter import matrix_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from rollog.kernel.versions.adapter import Adapter


class AdaptedLayers:
    """Adds to the outputs of adapted layers what their matrices make of the inputs."""

    def __init__(self) -> None:
        self._hooks: list[Any] = []

    def apply(
        self, model: torch.nn.Module, adapter: Adapter | None, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        """Replace what was applied before; afterwards the model computes with this adapter, or with none.

        The matrices among `tensors` are copied, into the type of their layer and onto its device: what they are read
        from may be files of which the next version is made.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if adapter is None:
            return
        for layer in adapter.targets:
            adapted: Any = model.get_submodule(layer)
            weight = adapted.weight
            first, second = (
                tensors[name].to(weight.device, weight.dtype, copy=True) for name in matrix_names(layer)
            )
            self._hooks.append(adapted.register_forward_hook(_adding(first, second, adapter.scaling)))


def _adding(
    first: torch.Tensor, second: torch.Tensor, scaling: float
) -> Callable[[torch.nn.Module, tuple[torch.Tensor, ...], torch.Tensor], torch.Tensor]:
    from torch.nn.functional import linear  # noqa: PLC0415 - heavy, and whoever comes here has it

    def add(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        return output + linear(linear(inputs[0], first), second) * scaling

    return add
