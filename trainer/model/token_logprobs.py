"""Log-probabilities and entropies of tokens from hidden states, without logits of all tokens at once.

    z = f(W h + b) / T        log pi = z_t - log sum_j exp z_j        H = log sum_j exp z_j - sum_j p_j z_j

W and b are those of the output layer, f is what the model does to its logits (`output_layer.py`), T the sampling
temperature. Tokens are taken chunk after chunk, in the forward pass and, computed again, in the backward pass:

    d log pi / d z_j = [j = t] - p_j        d H / d z_j = -p_j (log p_j + H)

so memory holds the logits of one chunk, C x V, which these gradients overwrite, and a part of them beside: at most 1.5
times C x V x 4 bytes. What is computed again has the same bits. The gradient of W is added up over chunks in float32
at least, and rounded once: where W is narrower, this sum takes V x H x 4 bytes more.

Shapes: N tokens, C tokens of a chunk, B tokens of a block of it, H hidden size, V vocabulary, K = 1 or 2 outputs.
"""
# ruff: noqa: N815 - tensors carry shape suffixes

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer.model.output_layer import LogitTransform

_small_block = 1 << 18
"""Logits that are not worth cutting up further."""
_num_blocks = 8
"""Parts of a chunk: intermediate values exist for one part only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobSettings:
    """How logits become log-probabilities.

    `chunk_tokens` is the C above. `dtype` is what the output layer computes in; None for that of its weights.
    """

    chunk_tokens: int
    temperature: float
    transform: LogitTransform
    with_entropy: bool = False
    dtype: torch.dtype | None = None


def token_logprobs(
    hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, target_N: Tensor, settings: LogprobSettings
) -> Tensor:
    """Log pi of `target_N` and, where asked for, entropies in nats: (N, K), in float32 or, from float64, in that.

    Differentiable with respect to hidden states, weight and bias, once.
    """
    outputs_NK: Tensor = _TokenLogprobs.apply(hidden_NH, weight_VH, bias_V, target_N, settings)  # type: ignore[no-untyped-call]
    return outputs_NK


class _TokenLogprobs(Function):
    """The two passes over all chunks. The logits of a chunk are its own: every step works on them in place."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd gives them by place
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        settings: LogprobSettings,
    ) -> Tensor:
        layer = _Layer.of(weight_VH, bias_V, settings.dtype)
        num_outputs = 2 if settings.with_entropy else 1
        outputs_NK = hidden_NH.new_zeros(
            (len(target_N), num_outputs), dtype=_float_type(layer.weight_VH.dtype)
        )
        logsums_N = torch.zeros_like(outputs_NK[:, 0])
        for chunk in _parts(len(target_N), settings.chunk_tokens):
            outputs_NK[chunk], logsums_N[chunk] = _chunk_outputs(
                layer.logits(hidden_NH[chunk]), target_N[chunk], num_outputs, settings
            )
        ctx.settings = settings
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, target_N, outputs_NK, logsums_N)
        return outputs_NK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads_NK: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V, target_N, outputs_NK, logsums_N = ctx.saved_tensors
        settings: LogprobSettings = ctx.settings
        layer = _Layer.of(weight_VH, bias_V, settings.dtype)
        sums = _LayerGradients.wanted(layer, hidden_NH, ctx.needs_input_grad)
        for chunk in _parts(len(target_N), settings.chunk_tokens):
            grads_CV = _chunk_gradients(
                layer.logits(hidden_NH[chunk]),
                target_N[chunk],
                settings,
                outputs_CK=outputs_NK[chunk],
                logsums_C=logsums_N[chunk],
                grads_CK=grads_NK[chunk],
            )
            sums.add(chunk, grads_CV, hidden_NH[chunk], layer.weight_VH)
            del grads_CV  # before the logits of the next chunk are computed
        return (*sums.rounded(hidden_NH, weight_VH, bias_V), None, None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layer:
    """The output layer in the type that it computes in."""

    weight_VH: Tensor
    bias_V: Tensor | None

    @classmethod
    def of(cls, weight_VH: Tensor, bias_V: Tensor | None, dtype: torch.dtype | None) -> _Layer:
        return cls(
            weight_VH=weight_VH if dtype is None else weight_VH.to(dtype),
            bias_V=bias_V if bias_V is None or dtype is None else bias_V.to(dtype),
        )

    def logits(self, hidden_CH: Tensor) -> Tensor:
        return linear(hidden_CH.to(self.weight_VH.dtype), self.weight_VH, self.bias_V)


@dataclass(slots=True, kw_only=True, eq=False)
class _LayerGradients:
    """Gradients of the layer's input and parameters, added up over chunks; None where nobody wants one."""

    hidden_NH: Tensor | None
    weight_VH: Tensor | None
    bias_V: Tensor | None

    @classmethod
    def wanted(cls, layer: _Layer, hidden_NH: Tensor, needed: tuple[bool, ...]) -> _LayerGradients:
        wide = _float_type(layer.weight_VH.dtype)
        return cls(
            hidden_NH=torch.zeros_like(hidden_NH) if needed[0] else None,
            weight_VH=torch.zeros_like(layer.weight_VH, dtype=wide) if needed[1] else None,
            bias_V=torch.zeros_like(layer.bias_V, dtype=wide)
            if layer.bias_V is not None and needed[2]
            else None,
        )

    def add(self, chunk: slice, grads_CV: Tensor, hidden_CH: Tensor, weight_VH: Tensor) -> None:
        if self.hidden_NH is not None:
            self.hidden_NH[chunk] = grads_CV @ weight_VH
        hidden_CH = hidden_CH.to(grads_CV.dtype)
        if self.weight_VH is not None and self.weight_VH.dtype == grads_CV.dtype:
            self.weight_VH.addmm_(grads_CV.t(), hidden_CH)
        elif self.weight_VH is not None:
            # Part by part: the product of a chunk, in the layer's own type, may be larger than its logits.
            for part in _parts(len(self.weight_VH), -(-len(self.weight_VH) // _num_blocks)):
                self.weight_VH[part] += grads_CV[:, part].t() @ hidden_CH
        if self.bias_V is not None:
            self.bias_V += grads_CV.sum(dim=0, dtype=self.bias_V.dtype)

    def rounded(
        self, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """In the types of what they are gradients of."""
        return (
            None if self.hidden_NH is None else self.hidden_NH.to(hidden_NH.dtype),
            None if self.weight_VH is None else self.weight_VH.to(weight_VH.dtype),
            None if self.bias_V is None or bias_V is None else self.bias_V.to(bias_V.dtype),
        )


def _chunk_outputs(
    logits_CV: Tensor, target_C: Tensor, num_outputs: int, settings: LogprobSettings
) -> tuple[Tensor, Tensor]:
    """Log pi and entropies (C, K), and log-sums (C). Overwrites the logits."""
    found = [
        _block_outputs(_shaped(logits_CV[block], settings), target_C[block], num_outputs)
        for block in _blocks(logits_CV)
    ]
    outputs, logsums = zip(*found, strict=True)
    return torch.cat(outputs), torch.cat(logsums)


def _chunk_gradients(
    logits_CV: Tensor,
    target_C: Tensor,
    settings: LogprobSettings,
    *,
    outputs_CK: Tensor,
    logsums_C: Tensor,
    grads_CK: Tensor,
) -> Tensor:
    """The gradient of the layer's own logits, in their place."""
    for block in _blocks(logits_CV):
        grads_BV = _block_gradients(
            logits_CV[block],
            settings,
            target_C[block],
            logsums_C[block],
            grads_CK[block],
            entropies_B=outputs_CK[block, 1] if settings.with_entropy else None,
        )
        if grads_BV.dtype != logits_CV.dtype:
            logits_CV[block].copy_(grads_BV)
    return logits_CV


def _block_outputs(logits_BV: Tensor, target_B: Tensor, num_outputs: int) -> tuple[Tensor, Tensor]:
    """Log pi and entropies (B, K), and log-sums (B). Overwrites the logits."""
    chosen_B = logits_BV.gather(1, target_B[:, None])[:, 0]
    largest_B1 = logits_BV.amax(dim=1, keepdim=True)
    if num_outputs == 1:
        logsums_B = largest_B1[:, 0] + logits_BV.sub_(largest_B1).exp_().sum(dim=1).log_()
        return (chosen_B - logsums_B)[:, None], logsums_B
    weights_BV = (logits_BV - largest_B1).exp_()
    sums_B = weights_BV.sum(dim=1)
    logsums_B = largest_B1[:, 0] + sums_B.log()
    entropies_B = logsums_B - weights_BV.mul_(logits_BV).sum(dim=1) / sums_B
    return torch.stack([chosen_B - logsums_B, entropies_B], dim=1), logsums_B


def _block_gradients(
    raw_BV: Tensor,
    settings: LogprobSettings,
    target_B: Tensor,
    logsums_B: Tensor,
    grads_BK: Tensor,
    *,
    entropies_B: Tensor | None,
) -> Tensor:
    """The gradient of the layer's own logits `raw_BV`: in their place, unless they are narrower than float32."""
    logits_BV = _shaped(raw_BV, settings)
    slope_BV = settings.transform.slope(logits_BV, settings.temperature)
    grads_B = grads_BK[:, 0]
    logprobs_BV = logits_BV.sub_(logsums_B[:, None])
    if entropies_B is None:
        grads_BV = logprobs_BV.exp_().mul_(-grads_B[:, None])
    else:
        probabilities_BV = logprobs_BV.exp()
        pull_B1, entropies_B1 = grads_BK[:, 1:], entropies_B[:, None]
        grads_BV = logprobs_BV.add_(entropies_B1).mul_(pull_B1).add_(grads_B[:, None])
        grads_BV.mul_(probabilities_BV).neg_()
    flat = grads_BV.view(-1)
    places_B = torch.arange(len(target_B), device=target_B.device) * grads_BV.shape[1] + target_B
    flat.index_copy_(0, places_B, flat[places_B] + grads_B)
    if settings.temperature != 1.0:
        grads_BV.div_(settings.temperature)
    return grads_BV if slope_BV is None else grads_BV.mul_(slope_BV)


def _shaped(raw_BV: Tensor, settings: LogprobSettings) -> Tensor:
    """Logits as the model gives them, wide, at the sampling temperature; `raw_BV` is overwritten."""
    settings.transform.apply_(raw_BV)
    logits_BV = raw_BV.to(_float_type(raw_BV.dtype))
    return logits_BV if settings.temperature == 1.0 else logits_BV.div_(settings.temperature)


def _float_type(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _parts(num_tokens: int, most: int) -> Iterator[slice]:
    """Slices of nearly equal length, none longer than `most`."""
    count = -(-num_tokens // most)
    for part in range(count):
        yield slice(part * num_tokens // count, (part + 1) * num_tokens // count)


def _blocks(logits_CV: Tensor) -> Iterator[slice]:
    num_tokens, vocabulary = logits_CV.shape
    return _parts(num_tokens, max(-(-num_tokens // _num_blocks), _small_block // vocabulary, 1))
