"""The output layer of a causal language model, and what the model does to its logits.

A few models scale their logits or cap them softly (Gemma 2 and 3, Cohere, Granite, Falcon-H1, RecurrentGemma). Who
computes with the layer's weights has to do the same, so it is read off the configuration and tried out on the model:
`find_transform` gives the model logits in place of its layer's, and looks at what it makes of them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rollog.kernel.errors import EngineError
from trainer.model.sharing import gather_when_called, unshared, whole_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel

    from trainer.model.sharing import Sharing

_factors = ("logit_scale", "lm_head_multiplier", "output_multiplier")
_divisors = ("logits_scaling",)
_caps = ("final_logit_softcapping", "logits_soft_cap")
_probed_logit = 60.0
"""Largest of the logits that a model is given: beyond what any soft cap in use leaves as it is."""
_probed_tokens = 2


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """What a model does to each logit: `factor * z`, `z / divisor`, `cap * tanh(z / cap)`; None: it does not."""

    factor: float | None = None
    divisor: float | None = None
    cap: float | None = None

    def apply_(self, logits: Tensor) -> Tensor:
        """The logits after it, in their place."""
        if self.factor is not None:
            logits.mul_(self.factor)
        if self.divisor is not None:
            logits.div_(self.divisor)
        if self.cap is not None:
            logits.div_(self.cap).tanh_().mul_(self.cap)
        return logits

    def slope(self, shaped: Tensor, temperature: float) -> Tensor | float | None:
        """Its derivative, from the logits after it and after division by `temperature`; None where that is 1."""
        slope: Tensor | float = (self.factor or 1.0) / (self.divisor or 1.0)
        if self.cap is not None:
            slope = (1.0 - (shaped * (temperature / self.cap)).square_()).mul_(slope)
        return None if isinstance(slope, float) and slope == 1.0 else slope


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputComputation:
    """How a policy computes with its output layer; the default is the model's own way, with all logits at once.

    With `chunk_tokens` log-probabilities are computed in chunks of so many tokens, on logits that the model would
    `transform`. `dtype` is the type that the layer computes in; None for that of its weights.
    """

    chunk_tokens: int = 0
    transform: LogitTransform = LogitTransform()
    dtype: torch.dtype | None = None


@contextmanager
def computing(layer: nn.Module, forward: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
    """Within this block `layer` computes `forward`. Gives its outputs, as all hooks on it have left them.

    The layer is still called as a module, so an engine that shares out its weights gathers them for that. What such an
    engine hangs on the outputs, to gather weights in the backward pass, is on those given here.
    """
    outputs: list[Tensor] = []
    own = vars(layer)
    before = own.get("forward")
    hook = layer.register_forward_hook(lambda _layer, _inputs, output: outputs.append(output))
    own["forward"] = forward
    try:
        yield outputs
    finally:
        hook.remove()
        del own["forward"]
        if before is not None:
            own["forward"] = before


def output_layer(model: PreTrainedModel) -> nn.Module:
    """The layer that gives logits. Raises EngineError where there is none."""
    layer: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if layer is None:
        raise EngineError(f"{type(model).__name__} has no output layer: it is no causal language model")
    return layer


@torch.no_grad()
def find_transform(model: PreTrainedModel, sharing: Sharing = unshared) -> LogitTransform | str:
    """What `model` does to the logits of its output layer, or, where that is not one of the known ways, why not.

    Runs the model on two tokens. The answer holds where logits after it are those of the model bit for bit.
    """
    layer = output_layer(model)
    if not isinstance(layer, nn.Linear):
        return f"its output layer is a {type(layer).__name__}, not a linear layer"
    seen: list[Tensor] = []
    given = torch.linspace(
        -_probed_logit, _probed_logit, _probed_tokens * whole_shape(layer.weight)[0], dtype=layer.weight.dtype
    ).view(1, _probed_tokens, -1)

    def replace(_layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.extend((inputs[0], output))
        return given.to(output.device)

    hook = layer.register_forward_hook(replace)
    try:
        # Not token 0 alone: the embedding of padding may be zero, on which all layers agree.
        tokens_1T = torch.arange(_probed_tokens, device=layer.weight.device)[None]
        with gather_when_called(model, sharing):
            shown: Tensor = model(input_ids=tokens_1T, use_cache=False).logits
    finally:
        hook.remove()
    with sharing.gathered(layer.parameters(recurse=False)):
        return _explained(model, layer, seen, given, shown)


def _explained(
    model: PreTrainedModel, layer: nn.Linear, seen: list[Tensor], given: Tensor, shown: Tensor
) -> LogitTransform | str:
    if len(seen) != 2:  # noqa: PLR2004 - input and output of one call
        return "it calls its output layer more than once"
    # Looked up anew: DeepSpeed puts another function in the place of PyTorch's, which the layer then calls.
    if not torch.equal(nn.functional.linear(seen[0], layer.weight, layer.bias), seen[1]):
        return f"its output layer, a {type(layer).__name__}, computes more than a linear layer"
    for transform in _candidates(model.config):
        # Where the model computed: devices round otherwise.
        expected = transform.apply_(given.to(shown.device, copy=True))
        if shown.shape == expected.shape and torch.equal(shown.float(), expected.float()):
            return transform
    return "it changes logits in a way that is not known"


def _candidates(config: Any) -> Iterator[LogitTransform]:
    """No change, then what the configuration says by one of the known names, alone and together."""
    named = [_numbers(config, names) for names in (_factors, _divisors, _caps)]
    yield LogitTransform()
    for factor in (None, *named[0]):
        for divisor in (None, *named[1]):
            for cap in (None, *named[2]):
                yield LogitTransform(factor, divisor, cap)


def _numbers(config: Any, names: tuple[str, ...]) -> list[float]:
    """What `config`, or the configuration of its text model, has under one of these names."""
    places = (config, getattr(config, "text_config", None))
    values = chain.from_iterable((getattr(place, name, None) for name in names) for place in places)
    return [float(value) for value in values if isinstance(value, (int, float)) and value]
