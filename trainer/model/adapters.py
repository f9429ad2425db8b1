"""Low-rank adapters (LoRA, arXiv 2106.09685), made by peft.

The model's own weights stay as they are. Beside each chosen layer the product of two small matrices is trained, of
which one is zero at first, so that a run begins with the very model it was given.

    y = W x + (alpha / rank) B A x

| `trainer.lora_published` | a version holds |
| --- | --- |
| `adapters` | the model's tensors as they were, and A and B of each layer (`rollog.kernel.versions.adapter`) |
| `merged` | the model's tensors with W + (alpha / rank) B A in place of W, under the model's own names |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from transformers.pytorch_utils import Conv1D

from rollog.kernel.errors import ConfigError, WeightsError
from rollog.kernel.versions.adapter import Adapter, first_suffix, second_suffix
from rollog.kernel.versions.files import adapter_at
from rollog.kernel.versions.files import merged_tensors as merged_tensors_in
from trainer.model.policy import load_weights, untied_tensors
from trainer.model.sharing import unshared

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from rollog.settings.training import TrainerConfig
    from trainer.model.sharing import Sharing

_adapter = "default"
_seed = 0
"""Of the first values of every A: they belong to the run, like the model it begins with."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublishedTensor:
    """One tensor of a version: its name, what it is made of, and the layer whose adapter is added, if any.

    Where tensors are shared out among ranks, `parts` have to be gathered before `value` is asked for.
    """

    name: str
    parts: tuple[Tensor, ...]
    adapted: Any = None

    def value(self) -> Tensor:
        """What is published; merged in float32, and rounded only when it is written."""
        weight, *matrices = (part.detach() for part in self.parts)
        if self.adapted is None:
            return weight
        first, second = (matrix.float() for matrix in matrices)
        product: Tensor = self.adapted.scaling[_adapter] * (second @ first)
        return weight.float() + (product.T if self.adapted.fan_in_fan_out else product)


class WithoutAdapters:
    """Calls of `policy`, or of an engine around one, with its adapters off: the model that the run began with.

    No second copy of the model is needed, and an engine that shares out the weights goes on doing so.
    """

    def __init__(self, policy: nn.Module) -> None:
        self._policy = policy

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the policy answers without its adapters; meant for calls without gradient."""
        layers: list[Any] = [module for module in self._policy.modules() if _has_adapter(module)]
        for layer in layers:
            layer.enable_adapters(enabled=False)
        try:
            return self._policy(*args, **kwargs)
        finally:
            for layer in layers:
                layer.enable_adapters(enabled=True)


def add_adapters(model: PreTrainedModel, trainer: TrainerConfig) -> None:
    """Give the chosen layers of `model` adapters, and have nothing else of it trained; nothing happens at rank 0.

    The first values are the same each time. Raises ConfigError for layers that `model` does not have, or that peft
    does not adapt.
    """
    if trainer.lora_rank == 0:
        return
    from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 - heavy, and seldom needed

    known = _adaptable(model)
    unknown = sorted(set(trainer.lora_targets) - known)
    if unknown:
        raise ConfigError(
            f"trainer.lora_targets has {', '.join(unknown)}: {type(model).__name__} has no such linear layer before "
            f"its output layer; name some of {', '.join(sorted(known))}, or none for all"
        )

    targets = sorted(set(trainer.lora_targets) or known)
    config = LoraConfig(
        r=trainer.lora_rank,
        lora_alpha=trainer.lora_alpha,
        target_modules=targets,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed)
        try:
            inject_adapter_in_model(config, model, adapter_name=_adapter)
        except ValueError as error:
            raise ConfigError(
                f"trainer.lora_rank = {trainer.lora_rank}: peft does not adapt all of "
                f"{', '.join(targets)} of {type(model).__name__} ({error}); "
                "name other layers in trainer.lora_targets"
            ) from error


def adapter_versions(trainer: TrainerConfig) -> dict[str, str]:
    """The version of what makes adapters, where a run has some."""
    if trainer.lora_rank == 0:
        return {}
    import peft  # noqa: PLC0415 - heavy, and seldom needed

    return {"peft": peft.__version__}


def trained_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that an optimizer moves: with adapters only these, and a value head."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def accumulate_in_float32(parameters: Iterable[nn.Parameter]) -> None:
    """Have autograd add up the gradients of `parameters` in float32, whatever type these have."""
    for parameter in parameters:
        parameter.grad_dtype = torch.float32


def adapter_of(model: nn.Module) -> Adapter | None:
    """What the content of a version says of the adapters of `model`, where these are published apart."""
    adapted: dict[str, Any] = _adapted_layers(model)
    if not adapted:
        return None
    first = next(iter(adapted.values()))
    return Adapter(
        rank=int(first.r[_adapter]),
        scaling=float(first.scaling[_adapter]),
        targets=tuple(sorted(adapted)),
        rule="transposed" if first.fan_in_fan_out else "linear",
    )


def published_adapter(model: nn.Module, trainer: TrainerConfig) -> Adapter | None:
    """What versions say of adapters: nothing where these are merged."""
    return None if trainer.lora_published == "merged" else adapter_of(model)


def load_published(model: nn.Module, path: Path, sharing: Sharing = unshared) -> None:
    """Replace all weights by those of a version that holds adapters apart.

    Where its adapters are others than the model's, as in a replay with another rank, they have to do nothing yet: the
    model's own stay then. Raises WeightsError where they do something, and as `load_weights`.
    """
    theirs, ours = adapter_at(path), adapter_of(model)
    if theirs is not None and ours is not None and replace(theirs, scaling=ours.scaling) != ours:
        if any(merged_tensors_in(path, _seconds_with_effect).values()):
            raise WeightsError(
                f"{path} has adapters of rank {theirs.rank} of {len(theirs.targets)} layers, which were trained, the "
                f"model has some of rank {ours.rank} of {len(ours.targets)}: begin with version 0"
            )
        return
    load_weights(
        model, path, {tensor.name: tensor.parts[0] for tensor in tensors_apart(model)}, sharing=sharing
    )


def _seconds_with_effect(file: Path) -> dict[str, bool]:
    """Whether there is anything but zeros in each matrix B of a file."""
    with safe_open(file, framework="pt") as opened:
        names = [name for name in opened.keys() if name.endswith(second_suffix)]  # noqa: SIM118
        return {name: bool(opened.get_tensor(name).any()) for name in names}


def tensors_apart(model: nn.Module) -> Iterator[PublishedTensor]:
    """The model's tensors under its own names, and beside each adapted layer its two matrices."""
    adapted = _adapted_layers(model)
    for name, tensor in untied_tensors(model):
        owner = next((layer for layer in adapted if name.startswith(f"{layer}.")), None)
        own_name = "" if owner is None else name.removeprefix(f"{owner}.")
        published = {
            f"lora_A.{_adapter}.weight": f"{owner}{first_suffix}",
            f"lora_B.{_adapter}.weight": f"{owner}{second_suffix}",
        }.get(own_name, name if owner is None else f"{owner}.{own_name.removeprefix('base_layer.')}")
        yield PublishedTensor(name=published, parts=(tensor,))


def merged_tensors(model: nn.Module) -> Iterator[PublishedTensor]:
    """The model's tensors under its own names, with adapters merged in."""
    adapted = _adapted_layers(model)
    for name, tensor in untied_tensors(model):
        owner = next((layer for layer in adapted if name.startswith(f"{layer}.")), None)
        if owner is None:
            yield PublishedTensor(name=name, parts=(tensor,))
            continue
        own_name = name.removeprefix(f"{owner}.")
        if not own_name.startswith("base_layer."):
            continue
        published = f"{owner}.{own_name.removeprefix('base_layer.')}"
        if own_name != "base_layer.weight":
            yield PublishedTensor(name=published, parts=(tensor,))
            continue
        layer: Any = adapted[owner]
        matrices = (layer.lora_A[_adapter].weight, layer.lora_B[_adapter].weight)
        yield PublishedTensor(name=published, parts=(tensor, *matrices), adapted=layer)


def _adapted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Layers with an adapter by their names."""
    return {name: module for name, module in model.named_modules() if _has_adapter(module)}


def _has_adapter(module: nn.Module) -> bool:
    return _adapter in getattr(module, "lora_A", ())


def _adaptable(model: PreTrainedModel) -> set[str]:
    """Last parts of the names of linear layers, the output layer apart."""
    output_layer: object = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not output_layer
    }
