"""Weights that DeepSpeed shares out among ranks at ZeRO stage 3, from the moment a model is built.

DeepSpeed would also give every tensor that is made meanwhile the model's type, and make it on the accelerator: in
bfloat16 the frequencies of rotary positions are rounded then, which vLLM does not do, and the log-probabilities differ
in the third digit. So both are left out here, and buffers are as on a rank that has the whole model.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers.integrations.deepspeed import HfDeepSpeedConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor, nn


class ZeroSharing:
    """`trainer.model.sharing.Sharing` of DeepSpeed's; the process group of the ranks is joined already.

    Rank 0 reads the weights of a version, a tensor at a time, and the others get them from there.
    """

    def __init__(self, deepspeed: Any, config: dict[str, Any]) -> None:
        self._zero = deepspeed.zero
        self._groups = deepspeed.utils.groups
        self._config = config
        self._building = _keeping_buffers(deepspeed.zero.Init)

    def building(self) -> AbstractContextManager[Any]:
        """DeepSpeed shares out the parameters of each module when it has been made."""
        building: AbstractContextManager[Any] = self._init(config_dict_or_path=self._config)
        return building

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While this configuration is alive, `transformers` shares out what it builds, and reads into that."""
        alive = HfDeepSpeedConfig(self._config)  # type: ignore[no-untyped-call]
        own = self._zero.Init
        # It asks for this class by its name, and has no other way to say how it is made.
        self._zero.Init = self._init
        try:
            yield
        finally:
            self._zero.Init = own
            del alive

    @property
    def _init(self) -> Callable[..., AbstractContextManager[Any]]:
        # A second model shares weights out in the groups of the first.
        group = self._groups._get_zero_param_intra_parallel_group()  # noqa: SLF001 - there is no public name
        return partial(self._building, tensor_overrides=[], zero_param_parallel_group=group)

    def place(self, model: nn.Module) -> None:
        """Move buffers to where DeepSpeed has put the weights."""
        device = next(model.parameters()).device
        for buffer in model.buffers():
            buffer.data = buffer.data.to(device)

    def gathered(self, tensors: Iterable[Tensor]) -> AbstractContextManager[Any]:
        """Buffers, and weights that are not shared out yet, are whole on every rank."""
        return self._gathering(tensors, None)

    @contextmanager
    def writing(self, tensor: Tensor) -> Iterator[bool]:
        """Rank 0 writes what is shared out, each rank what it has whole."""
        with self._gathering([tensor], 0):
            yield not _is_shared_out(tensor) or torch.distributed.get_rank() == 0

    def _gathering(self, tensors: Iterable[Tensor], modifier_rank: int | None) -> AbstractContextManager[Any]:
        weights = [*filter(_is_shared_out, tensors)]
        gathering: AbstractContextManager[Any] = self._zero.GatheredParameters(weights, modifier_rank)
        return gathering


def _keeping_buffers(init: Any) -> Any:
    """The class of DeepSpeed's that shares weights out, with all weights in one type, as it wants them."""

    class Init(init):  # type: ignore[misc]
        def _post_init_method(self, module: nn.Module) -> None:
            for weight in module.parameters(recurse=False):
                if weight.is_floating_point() and not _is_shared_out(weight):
                    weight.data = weight.data.to(self.dtype)
            super()._post_init_method(module)

    return Init


def _is_shared_out(tensor: Tensor) -> bool:
    return hasattr(tensor, "ds_id")
